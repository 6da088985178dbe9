"""Each check of the elastic demo passes with a good story and fails with one that lacks just its point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.scenarios.elastic import Story, judge
from tests.unit.scenarios.evidence import BEST, COMPLETED, plan

from frenzy.adapters.spec.cluster_file import load_cluster
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.cli.demo import demo_settings
from frenzy.cli.demo_migrations import scene_folder, specs_of
from frenzy.core.runs.ledger import Attempt, JobState, NextAttempt, RunIdentity, RunRecord
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult
from frenzy.settings import CHECKOUT, ElasticMoves, load_settings

SHRINK = Reason(code=ReasonCode.MOVED_TO_SHRINK, detail="Makes room.")
GROW = Reason(code=ReasonCode.MOVED_TO_GROW, detail="Has room.")
JOB = job_from_yaml((scene_folder("elastic") / "long.yaml").read_text())


def attempt(
    number: int, num_gpus: int, begin_s: float, end_s: float, outcome: Reason, steps: tuple[int, int]
) -> Attempt:
    """An attempt that resumed from the first of ``steps`` and stopped at the second."""
    return Attempt(
        run_key="key",
        attempt=number,
        plan=plan(num_gpus, 16 // num_gpus),
        placement=Placement(allocations=(NodeAllocation(node="a", num_gpus=num_gpus),)),
        created_s=begin_s,
        next_attempt=NextAttempt(attempt=number, reason=BEST),
        first_step_s=begin_s + 1,
        ended_s=end_s,
        result=AttemptResult(exit_code=98, last_step=steps[1], total_steps=420, resumed_from_step=steps[0]),
        outcome=outcome,
    )


def run(name: str, *attempts: Attempt, state: JobState = JobState.SUCCEEDED, num_reschedules: int = 0) -> RunView:
    identity = RunIdentity(dag_id=f"job_{name}", run_id="r", task_group="train")
    record = RunRecord(
        run_key=name,
        identity=identity,
        job=replace(JOB, name=name),
        state=state,
        created_s=0.0,
        updated_s=0.0,
        num_reschedules=num_reschedules,
    )
    return RunView(run=record, attempts=attempts)


FIRST = attempt(1, 2, 0, 10, SHRINK, (0, 30))
SECOND = attempt(2, 1, 12, 30, GROW, (30, 50))
THIRD = attempt(3, 4, 32, 60, COMPLETED, (50, 420))
LONG = run("long", FIRST, SECOND, THIRD)
STEADY = run("steady", attempt(1, 2, 0, 40, COMPLETED, (0, 240)))
SHORT = run("short", attempt(1, 1, 11, 28, COMPLETED, (0, 40)))
GOOD = Story(steady=STEADY, long=LONG, short=SHORT, num_held_gpus=0)


def broken(story: Story) -> list[str]:
    return [each.name for each in judge(story) if not each.passed]


def test_a_good_story_passes_every_check() -> None:
    assert broken(GOOD) == []


def of_long(*attempts: Attempt, num_reschedules: int = 0) -> Story:
    return replace(GOOD, long=run("long", *attempts, num_reschedules=num_reschedules))


@pytest.mark.parametrize(
    ("story", "names"),
    [
        (replace(GOOD, short=run("short", *SHORT.attempts, state=JobState.FAILED)), ["All three jobs"]),
        (of_long(FIRST, replace(SECOND, plan=FIRST.plan), THIRD), ["The long job shrank"]),
        (replace(GOOD, short=run("short", attempt(1, 1, 61, 70, COMPLETED, (0, 40)))), ["Both trained"]),
        (of_long(FIRST, SECOND, replace(THIRD, plan=SECOND.plan)), ["The long job grew back"]),
        (replace(GOOD, steady=LONG), ["The job with elastic: off"]),
        (of_long(FIRST, SECOND, attempt(3, 4, 32, 60, COMPLETED, (40, 420))), ["No step was lost"]),
        (of_long(FIRST, SECOND, replace(THIRD, plan=replace(THIRD.plan, dp=8))), ["The global batch"]),
        (of_long(FIRST, SECOND, THIRD, num_reschedules=1), ["The user's budget"]),
        (replace(GOOD, num_held_gpus=2), ["All GPUs are free"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_is_missing_fails_its_check_alone(story: Story, names: list[str]) -> None:
    assert [name for name in broken(story) if not any(name.startswith(each) for each in names)] == []
    assert len(broken(story)) == len(names)


def test_a_job_that_was_never_moved_passes_no_check_of_moves() -> None:
    still = replace(GOOD, long=run("long", THIRD))
    assert len(broken(still)) == 4


def test_the_jobs_want_the_same_gpus_and_only_the_long_one_may_be_moved() -> None:
    steady, long, short = (each.job for each in specs_of("elastic"))
    assert {each.constraints.gpu_types for each in (steady, long, short)} == {("v-small",)}
    assert (steady.elastic, long.elastic) == ("off", "auto")
    laptop = load_cluster(CHECKOUT / "include/clusters/laptop.yaml")
    wanted = sum(each.constraints.max_gpus or 0 for each in (steady, short))
    assert wanted < laptop.num_gpus_by_type["v-small"] <= 2 * (steady.constraints.max_gpus or 0)


def test_moves_for_others_belong_to_the_elastic_demo_alone(tmp_path: Path) -> None:
    settings = load_settings({"FRENZY_HOME": str(tmp_path)})
    assert demo_settings(settings, None).elastic is ElasticMoves.OFF
    elastic = demo_settings(settings, None, elastic=True)
    assert elastic.elastic is ElasticMoves.AUTO
    assert elastic.min_run_s < settings.min_run_s
