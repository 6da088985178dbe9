"""Jobs that bring a script of their own: planned without a model, moved only as far as the script can go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.app.moving import ScriptedScheduler, pinned, run_on
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.observe import report_progress
from frenzy.app.queries import run_view
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import DirectiveKind, EndReport, ProgressReport, VerdictKind
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.resource_plan import MemorySource
from frenzy.core.values.units import MIB
from frenzy.core.values.workload import DeclaredMemory, WorkloadSpec


def script(per_gpu: str = "100 MiB", *, steps: int | None = 100, **workload: Any) -> TrainingJob:
    return replace(
        make_job("script"),
        model=ModelSpec(),
        data=DataSpec(path=""),
        training=TrainingSpec(max_steps=steps, global_batch_size=8),
        workload=WorkloadSpec(command=("python", "train.py"), honours=("world_size",), **workload),
        memory=DeclaredMemory(per_gpu=per_gpu),
    )


def test_a_script_without_a_model_is_planned_run_and_done(airflow: Airflow) -> None:
    airflow.begun(script())
    (attempt,) = run_view(airflow.services, airflow.key).attempts
    assert attempt.plan.memory.source is MemorySource.DECLARED
    airflow.end(1, 0, last_step=100)
    assert airflow.decide().kind is VerdictKind.DONE
    assert run_view(airflow.services, airflow.key).run.state is JobState.SUCCEEDED


def test_a_script_that_ends_before_the_steps_it_was_given_is_done_all_the_same(airflow: Airflow) -> None:
    airflow.begun(script())
    result = AttemptResult(exit_code=0, last_step=40, total_steps=40)
    view = end_attempt(airflow.services, airflow.key, 1, EndReport(result=result))
    assert view.attempts[0].outcome is not None
    assert view.attempts[0].outcome.code is ReasonCode.COMPLETED


def test_a_script_that_needs_more_than_any_gpu_has_is_refused(airflow: Airflow) -> None:
    run = airflow.register(script("900 GiB")).run
    assert run.state is JobState.FAILED_NO_RESOURCE
    assert run.reason is not None


@pytest.mark.parametrize("resumable", [True, "same-world"])
def test_a_script_whose_memory_grows_is_moved_to_a_larger_card(
    airflow: Airflow, scheduler: ScriptedScheduler, resumable: Any
) -> None:
    run = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(run, scheduler, script(resumable=resumable), 1, step=20)
    assert run.press(1, extra=950 * MIB, number=20).kind is DirectiveKind.CHECKPOINT_AND_STOP
    run.end(1, 98, last_step=20)
    assert run.decide().kind is VerdictKind.RETRY
    placed = run.place()
    assert placed.spec is not None
    assert placed.spec.plan.gpu_type == "large"
    assert resumable is True or placed.spec.plan.num_gpus == 1


def test_a_script_that_cannot_go_on_is_never_stopped_by_choice(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    stays = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(stays, scheduler, script(), 1, step=20)
    assert pinned(stays)
    assert stays.press(1, extra=MIB).kind is DirectiveKind.CONTINUE


@pytest.mark.parametrize(("resumable", "widths"), [(True, {1, 2}), ("same-world", {2})])
def test_after_a_crash_a_script_goes_on_in_the_shapes_that_read_its_checkpoint(
    airflow: Airflow, scheduler: ScriptedScheduler, resumable: Any, widths: set[int]
) -> None:
    run = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(run, scheduler, script(resumable=resumable), 2, step=20)
    report_progress(run.services, run.key, 1, ProgressReport(last_step=20, checkpoint_step=20))
    run.end(1, 137, last_step=20)
    assert run.decide().kind is VerdictKind.RETRY
    run.place()
    entry = run_view(run.services, run.key).run.candidates
    assert widths <= {each.plan.num_gpus for each in entry if each.feasible}
    queued = [each for facts in scheduler.seen for each in facts.queued if each.run_key == run.key]
    assert widths == {plan.num_gpus for plan in queued[-1].plans} & {1, 2}
