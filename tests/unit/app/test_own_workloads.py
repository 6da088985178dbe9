"""Jobs that bring a script of their own: planned without a model, moved only as far as the script can go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.app.moving import ScriptedScheduler, pinned, run_on
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.observe import attempt_launching, report_progress
from frenzy.app.queries import run_view
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import DirectiveKind, EndReport, ProgressReport, VerdictKind
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import ConstraintsSpec, DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import MemorySource
from frenzy.core.values.units import MIB
from frenzy.core.values.workload import DeclaredMemory, WorkloadSpec

ONLY_SMALL = ConstraintsSpec(gpu_types=("small",))


def script(per_gpu: str | None = "100 MiB", *, steps: int | None = 100, **workload: Any) -> TrainingJob:
    return replace(
        make_job("script"),
        model=ModelSpec(),
        data=DataSpec(path=""),
        training=TrainingSpec(max_steps=steps, global_batch_size=8),
        workload=WorkloadSpec(command=("python", "train.py"), honours=("world_size",), **workload),
        memory=None if per_gpu is None else DeclaredMemory(per_gpu=per_gpu),
    )


def take_steps(airflow: Airflow, attempt: int, step: int, peak: int, checkpoint: int | None = None) -> DirectiveKind:
    """Report ``step`` with a peak of so many bytes; what is wanted of the attempt."""
    progress = ProgressReport(
        last_step=step,
        first_step_s=airflow.clock.now_s(),
        peaks=PeakMemory(allocated_bytes=peak, reserved_bytes=peak, device_used_bytes=peak),
        explained_peak_bytes=peak,
        checkpoint_step=checkpoint,
    )
    return report_progress(airflow.services, airflow.key, attempt, progress).kind


def rehearse(airflow: Airflow, job: TrainingJob, peak: int = 200 * MIB) -> None:
    """Bring ``job`` to the end of its rehearsal."""
    airflow.register(job)
    airflow.place()
    airflow.launch(1)
    assert take_steps(airflow, 1, 2, peak) is DirectiveKind.CONTINUE
    assert take_steps(airflow, 1, 3, peak) is DirectiveKind.CHECKPOINT_AND_STOP
    airflow.end(1, 98, last_step=3)


def sources(airflow: Airflow) -> set[MemorySource]:
    return {each.plan.memory.source for each in run_view(airflow.services, airflow.key).candidates if each.feasible}


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
    entry = run_view(run.services, run.key).candidates
    assert widths <= {each.plan.num_gpus for each in entry if each.feasible}
    queued = [each for facts in scheduler.seen for each in facts.queued if each.run_key == run.key]
    assert widths == {plan.num_gpus for plan in queued[-1].plans} & {1, 2}


def test_a_same_world_script_keeps_its_shape_after_an_attempt_whose_workers_never_began(
    airflow: Airflow, scheduler: ScriptedScheduler
) -> None:
    run = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(run, scheduler, script(resumable="same-world"), 2, step=20)
    report_progress(run.services, run.key, 1, ProgressReport(last_step=20, checkpoint_step=20))
    run.end(1, 137, last_step=20)
    assert run.decide().kind is VerdictKind.RETRY
    run.place()
    refused = Reason(code=ReasonCode.LAUNCH_FAILED, detail="The quota refused a pod.")
    attempt_launching(run.services, run.key, 2)
    end_attempt(run.services, run.key, 2, EndReport(reason=refused))
    following = run.decide().next_attempt
    assert following is not None
    assert following.checkpoint_step == 20
    run.place()
    queued = [each for facts in scheduler.seen for each in facts.queued if each.run_key == run.key]
    assert {plan.num_gpus for plan in queued[-1].plans} == {2}


def test_a_script_of_unknown_memory_rehearses_three_steps_and_goes_on_with_what_they_took(airflow: Airflow) -> None:
    rehearse(airflow, script(None, resumable=True))
    verdict = airflow.decide()
    assert (verdict.kind, verdict.reason.code) == (VerdictKind.RETRY, ReasonCode.REHEARSED)
    placed = airflow.place()
    assert placed.spec is not None
    memory = placed.spec.plan.memory
    assert memory.source is MemorySource.LEARNT
    assert memory.peak_allocated_bytes <= 200 * MIB * 5 / 4
    view = run_view(airflow.services, airflow.key)
    assert [each.plan.memory.source for each in view.attempts] == [MemorySource.REHEARSAL, MemorySource.LEARNT]
    assert view.run.num_reschedules == 0


def test_the_next_run_of_the_script_needs_no_rehearsal_and_another_script_does(airflow: Airflow) -> None:
    rehearse(airflow, script(None))
    again, other = airflow.another(), airflow.another()
    again.register(replace(script(None), name="again"))
    assert sources(again) == {MemorySource.LEARNT}
    changed = replace(script(None), name="other")
    assert changed.workload is not None
    other.register(replace(changed, workload=replace(changed.workload, command=("python", "other.py"))))
    assert sources(other) == {MemorySource.REHEARSAL}


def test_a_rehearsal_that_runs_out_of_memory_goes_on_elsewhere_and_never_with_the_same_plan(airflow: Airflow) -> None:
    shapes = []
    for attempt in (1, 2, 3):
        if attempt == 1:
            airflow.register(script(None))
        spec = airflow.place().spec
        assert spec is not None
        shapes.append(spec.plan.shape)
        airflow.launch(attempt)
        airflow.end(attempt, 97, last_step=0)
        if airflow.decide().kind is not VerdictKind.RETRY:
            break
    assert len(shapes) > 1
    assert len(set(shapes)) == len(shapes)


def test_a_rehearsal_without_a_word_of_the_script_is_the_run(airflow: Airflow) -> None:
    airflow.begun(script(None))
    airflow.end(1, 0, last_step=100)
    assert airflow.decide().kind is VerdictKind.DONE


def test_a_script_that_can_run_on_one_plan_only_is_not_stopped_to_be_measured(airflow: Airflow) -> None:
    only = replace(script(None), constraints=ConstraintsSpec(gpu_types=("large",)))
    assert only.workload is not None
    only = replace(only, workload=replace(only.workload, honours=()))
    airflow.register(only)
    airflow.place()
    airflow.launch(1)
    assert take_steps(airflow, 1, 3, 200 * MIB) is DirectiveKind.CONTINUE


def test_a_rehearsal_is_not_moved_by_choice(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    stays = replace(airflow, services=replace(airflow.services, schedule=scheduler))
    run_on(stays, scheduler, replace(script(None, resumable=True), constraints=ONLY_SMALL), 1, step=1)
    assert pinned(stays)


def test_what_a_declared_script_really_took_is_learnt_once_it_is_done(airflow: Airflow) -> None:
    airflow.begun(script())
    take_steps(airflow, 1, 90, 150 * MIB)
    airflow.end(1, 0, last_step=100)
    after = airflow.another()
    after.register(replace(script(), name="after"))
    assert MemorySource.LEARNT in sources(after)


def test_a_same_world_script_starts_anew_after_its_rehearsal_on_any_plan(airflow: Airflow) -> None:
    rehearse(airflow, script(None, resumable="same-world"))
    airflow.decide()
    airflow.place()
    found = run_view(airflow.services, airflow.key).candidates
    assert {each.plan.num_gpus for each in found if each.feasible} == {1, 2}


def test_a_rehearsal_that_was_ended_before_its_steps_teaches_nothing(airflow: Airflow) -> None:
    airflow.register(script(None, resumable=True))
    airflow.place()
    airflow.launch(1)
    assert take_steps(airflow, 1, 1, 80 * MIB) is DirectiveKind.CONTINUE
    airflow.end(1, 98, last_step=1)
    assert airflow.decide().kind is VerdictKind.RETRY
    airflow.place()
    assert sources(airflow) == {MemorySource.REHEARSAL}


def test_what_a_whole_run_grew_by_is_learnt(airflow: Airflow) -> None:
    airflow.begun(script(None))
    peaks = PeakMemory(allocated_bytes=900 * MIB, reserved_bytes=900 * MIB, device_used_bytes=900 * MIB)
    grown = ProgressReport(last_step=100, peaks=peaks, explained_peak_bytes=300 * MIB, growth_step=40)
    report_progress(airflow.services, airflow.key, 1, grown)
    airflow.end(1, 0, last_step=100)
    after = airflow.another()
    after.register(replace(script(None), name="after"))
    plans = [each.plan for each in run_view(after.services, after.key).candidates]
    assert min(each.memory.peak_allocated_bytes for each in plans) == 900 * MIB


def test_a_plan_is_not_rehearsed_over_and_over(airflow: Airflow) -> None:
    """What its runs took counts no more once the service has other libraries."""
    rehearse(airflow, replace(script(None), constraints=ConstraintsSpec(gpu_types=("large",))))
    calibration = replace(airflow.services.calibration, versions={"torch": "9.9"})
    later = replace(airflow, services=replace(airflow.services, calibration=calibration))
    later.decide()
    later.place()
    later.launch(2)
    assert run_view(later.services, later.key).attempts[1].plan.memory.source is MemorySource.REHEARSAL
    assert take_steps(later, 2, 6, 200 * MIB) is DirectiveKind.CONTINUE
