"""Each check of the swap demo passes with a good story and fails with one that lacks just its point."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scenarios.swap import SwapStory, Watched, judge
from tests.unit.scenarios.evidence import BEST, COMPLETED, CONFIG, loss, memory_of, plan, steps

from frenzy.adapters.spec.cluster_file import load_cluster
from frenzy.cli.demo_migrations import specs_of
from frenzy.core.runs.ledger import Attempt, JobState, NextAttempt, RunIdentity, RunRecord
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import MemoryView
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.units import MIB
from frenzy.settings import CHECKOUT

ROOMY_JOB, GROWING_JOB = (each.job for each in specs_of("swap"))
OUTGROWN = Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="It rises.")
FOR_GROWING = Reason(code=ReasonCode.MOVED_TO_OTHER_GPUS, detail="Moves: job swap-growing needs more memory.")


def attempt(number: int, node: str, begin_s: float, end_s: float, outcome: Reason, steps: tuple[int, int]) -> Attempt:
    """An attempt on the large or the medium node that resumed from the first of ``steps`` and stopped at the second."""
    memory_bytes = (640 if node == "large" else 320) * MIB
    chosen = replace(plan(1, 16), gpu_type=f"v-{node}", gpu_memory_bytes=memory_bytes)
    return Attempt(
        run_key="key",
        attempt=number,
        plan=chosen,
        placement=Placement(allocations=(NodeAllocation(node=node, num_gpus=1),)),
        created_s=begin_s,
        next_attempt=NextAttempt(attempt=number, reason=BEST),
        first_step_s=begin_s + 1,
        ended_s=end_s,
        result=AttemptResult(exit_code=98, last_step=steps[1], total_steps=40, resumed_from_step=steps[0]),
        outcome=outcome,
    )


def watched(job: TrainingJob, *attempts: Attempt, state: JobState = JobState.SUCCEEDED, **run: int) -> Watched:
    """The run of ``job``, twenty steps in each attempt, with the losses of its control run."""
    training = replace(job.training, global_batch_size=16)
    record = RunRecord(
        run_key=job.name,
        identity=RunIdentity(dag_id=f"job_{job.name}", run_id="r", task_group="train"),
        job=replace(job, training=training),
        model_config=CONFIG,
        state=state,
        created_s=0.0,
        updated_s=0.0,
        **run,
    )
    view = RunView(run=record, attempts=attempts)
    curves = tuple(
        replace(memory_of(each, 1), steps=steps(20 * at + 1, 20 * at + 20, 1)) for at, each in enumerate(attempts)
    )
    return Watched(
        view=view,
        memory=MemoryView(run_key=job.name, job_name=job.name, state=state, attempts=curves),
        control_losses={step: loss(step) for step in range(1, 41)},
        control_result=AttemptResult(exit_code=0, last_step=40, total_steps=40),
    )


BEFORE = attempt(1, "large", 0, 30, FOR_GROWING, (0, 20))
AFTER = attempt(2, "medium", 32, 90, COMPLETED, (20, 40))
SMALLER = attempt(1, "medium", 5, 25, OUTGROWN, (0, 20))
LARGER = attempt(2, "large", 32, 60, COMPLETED, (20, 40))
ROOMY = watched(ROOMY_JOB, BEFORE, AFTER)
GROWING = watched(GROWING_JOB, SMALLER, LARGER, num_reschedules=1)
GOOD = SwapStory(roomy=ROOMY, growing=GROWING, num_held_gpus=0)


def broken(story: SwapStory) -> list[str]:
    return [each.name for each in judge(story) if not each.passed]


def test_a_good_story_passes_every_check() -> None:
    assert broken(GOOD) == []


def roomy(*attempts: Attempt, num_reschedules: int = 0) -> SwapStory:
    return replace(GOOD, roomy=watched(ROOMY_JOB, *attempts, num_reschedules=num_reschedules))


def growing(*attempts: Attempt, state: JobState = JobState.SUCCEEDED) -> SwapStory:
    return replace(GOOD, growing=watched(GROWING_JOB, *attempts, state=state))


FOR_NOBODY = replace(FOR_GROWING, detail="Moves.")
TAKEN_BACK = replace(LARGER, outcome=FOR_NOBODY, ended_s=50.0)
OTHER_LOSSES = {step: 1.1 * loss(step) for step in range(1, 41)}


@pytest.mark.parametrize(
    ("story", "names"),
    [
        (growing(SMALLER, LARGER, state=JobState.FAILED), ["Both jobs trained to"]),
        (roomy(replace(BEFORE, outcome=FOR_NOBODY), AFTER), ["The roomy job moved"]),
        (roomy(BEFORE, replace(AFTER, first_step_s=70.0)), ["Both trained at their new places"]),
        (
            growing(SMALLER, TAKEN_BACK, attempt(3, "large", 52, 60, COMPLETED, (40, 40))),
            ["What was given", "The growing"],
        ),
        (roomy(BEFORE, attempt(2, "medium", 32, 90, COMPLETED, (10, 40))), ["No step was lost"]),
        (roomy(BEFORE, replace(AFTER, plan=replace(AFTER.plan, dp=2))), ["The global batch", "The roomy job's loss"]),
        (roomy(BEFORE, AFTER, num_reschedules=1), ["The user's budget"]),
        (replace(GOOD, growing=replace(GROWING, control_losses=OTHER_LOSSES)), ["The growing job's loss"]),
        (replace(GOOD, roomy=replace(ROOMY, control_result=None)), ["The roomy job's loss"]),
        (replace(GOOD, num_held_gpus=1), ["All GPUs are free"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_is_missing_fails_its_check(story: SwapStory, names: list[str]) -> None:
    lacking = broken(story)
    assert [name for name in lacking if not any(name.startswith(each) for each in names)] == []
    assert any(name.startswith(names[0]) for name in lacking)


def test_a_job_that_was_never_pressed_passes_no_check_of_a_swap() -> None:
    assert len(broken(growing(replace(LARGER, attempt=1)))) == 4


def test_both_jobs_want_the_one_large_gpu_and_fit_a_medium_one() -> None:
    wanted = [job.constraints for job in (ROOMY_JOB, GROWING_JOB)]
    laptop = load_cluster(CHECKOUT / "include/clusters/laptop.yaml")
    assert {(each.gpu_types, each.max_gpus) for each in wanted} == {(("v-medium", "v-large"), 1)}
    assert laptop.num_gpus_by_type["v-large"] == 1
