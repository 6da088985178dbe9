"""Each task asks once, and leaves the rest to the ledger."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferralTimeout,
    TaskDeferred,
)
from tests.unit.airflow.conftest import World
from tests.unit.airflow.triggering import report, steps
from tests.unit.installation import CONFIG
from tests.unit.web.conftest import registration

from frenzy.airflow.operators.operators import (
    DecideOperator,
    LaunchOperator,
    MonitorOperator,
    PlaceOperator,
    ProfileOperator,
    PublishOperator,
    ReconcileOperator,
)
from frenzy.airflow.operators.pod_operator import PodLaunchOperator
from frenzy.airflow.tasks.model_asset import model_asset
from frenzy.airflow.triggers.triggers import PLACED, LaunchTrigger, MonitorTrigger, PlaceTrigger
from frenzy.app.cancellation import cancel
from frenzy.app.observe import attempt_launching
from frenzy.app.place import enqueue
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import JobState, RunIdentity
from frenzy.core.runs.protocol import EndReport, PlaceStatus
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.job import ValidationSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.ports import WorkersState

TASKS = ("place", "launch", "monitor")


def deferral(operator: Any, context: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(context)
    return caught.value


def spec_document(data: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": "words",
        "model": {"config": dict(CONFIG)},
        "data": {"path": data, "sequence_length": 64},
        "training": {"max_steps": 10, "global_batch_size": 4},
        **changes,
    }


def profile(world: World, **arguments: Any) -> Any:
    context = world.context("train.profile", registration("words").identity)
    return ProfileOperator(task_id="profile", **arguments).execute(context)


def test_profile_registers_the_run_with_what_it_read_of_the_data(world: World, tmp_path: Any) -> None:
    (tmp_path / "words.txt").write_text("to be or not to be\n" * 50, encoding="utf-8")
    summary = profile(world, job=spec_document(str(tmp_path / "words.txt")))
    run = world.view(summary["run_key"]).run
    assert run.state is JobState.PLANNED
    assert run.data_facts.num_rows == 1
    assert run.data_facts.num_tokens == 50 * 19 + 1
    assert summary["num_plans"] > 0


def test_profile_takes_what_an_earlier_task_knows_of_the_data(world: World, tmp_path: Any) -> None:
    (tmp_path / "words.txt").write_text("to be", encoding="utf-8")
    known = {"num_rows": 7, "longest_sequence_tokens": 99, "num_tokens": 12345}
    summary = profile(world, job=spec_document(str(tmp_path / "words.txt")), data_facts=known)
    facts = world.view(summary["run_key"]).run.data_facts
    assert (facts.num_rows, facts.longest_sequence_tokens, facts.num_tokens) == (7, 99, 12345)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": {"path": "/nowhere/at/all.txt"}}, "data.path"),
        ({"training": {"max_steps": 0}}, "training.max_steps"),
        ({"constraints": {"gpu_types": ["absent"]}}, "absent"),
    ],
)
def test_profile_fails_for_good_and_names_the_field(
    world: World, tmp_path: Any, change: dict[str, Any], said: str
) -> None:
    (tmp_path / "words.txt").write_text("to be or not to be\n", encoding="utf-8")
    with pytest.raises(AirflowFailException, match=said):
        profile(world, job=spec_document(str(tmp_path / "words.txt")) | change)


def test_profile_refuses_what_is_no_specification(world: World) -> None:
    with pytest.raises(AirflowFailException, match="mapping or the path"):
        profile(world, job=17)


def test_place_ends_at_once_when_there_is_room(world: World) -> None:
    run = world.registered().run
    found = PlaceOperator(task_id="place").execute(world.context("train.place", run.identity))
    assert found["attempt"] == 1
    assert world.view(run.run_key).run.state is JobState.PLACED


def test_place_defers_while_the_run_waits(world: World) -> None:
    run = world.waiting().run
    deferred = deferral(PlaceOperator(task_id="place"), world.context("train.place", run.identity))
    assert isinstance(deferred.trigger, PlaceTrigger)
    assert deferred.trigger.run_key == run.run_key


def test_place_fails_for_good_when_the_run_was_cancelled(world: World) -> None:
    run = world.waiting().run
    operator, context = PlaceOperator(task_id="place"), world.context("train.place", run.identity)
    cancel(world.services, run.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER, detail="not wanted any more"))
    with pytest.raises(AirflowFailException, match="not wanted any more"):
        operator.resume(context, {"reason": None})


def test_launch_writes_the_spec_starts_the_workers_and_defers(world: World) -> None:
    spec = world.placed()
    run = world.view(spec.run_key).run
    deferred = deferral(LaunchOperator(task_id="launch"), world.context("train.launch", run.identity))
    assert isinstance(deferred.trigger, LaunchTrigger)
    assert world.runs.spec(spec.run_key, 1) == spec
    assert world.launcher.launched == [spec]
    attempt = world.view(spec.run_key).attempts[0]
    assert attempt.launcher_ref is not None
    assert world.view(spec.run_key).run.state is JobState.STARTING


def test_launch_starts_nothing_for_a_cancelled_run(world: World) -> None:
    spec = world.placed()
    run = world.view(spec.run_key).run
    cancel(world.services, spec.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    with pytest.raises(AirflowFailException):
        LaunchOperator(task_id="launch").execute(world.context("train.launch", run.identity))
    assert world.launcher.launched == []


def test_launch_again_finds_the_workers_that_run(world: World) -> None:
    spec = world.placed()
    context = world.context("train.launch", world.view(spec.run_key).run.identity)
    for _ in range(2):
        deferral(LaunchOperator(task_id="launch"), context)
    assert len(world.launcher.launched) == 1


def test_monitor_defers_to_the_watch_over_the_attempt_that_is_placed(world: World) -> None:
    spec = world.placed()
    context = world.context("train.monitor", world.view(spec.run_key).run.identity)
    trigger = deferral(MonitorOperator(task_id="monitor"), context).trigger
    assert isinstance(trigger, MonitorTrigger)
    assert (trigger.run_key, trigger.attempt) == (spec.run_key, PLACED)


def started(world: World, **job: Any) -> Any:
    """A run whose workers run, and the context of its decide task."""
    spec = world.placed(**job)
    identity = world.view(spec.run_key).run.identity
    deferral(LaunchOperator(task_id="launch"), world.context("train.launch", identity))
    return spec, world.context("train.decide", identity)


def decide(context: Any) -> Any:
    return DecideOperator(task_id="decide", attempt_tasks=TASKS).execute(context)


def ended(world: World, spec: Any, exit_code: int) -> None:
    """What the launch trigger does when the workers are gone."""
    world.workers_end(spec, exit_code, last_step=5 if exit_code else 100)
    end_attempt(world.services, spec.run_key, spec.attempt, EndReport(result=world.runs.result(spec.run_key, 1)))


def test_decide_is_done_after_success(world: World) -> None:
    spec, context = started(world)
    ended(world, spec, 0)
    assert decide(context)["reason"] == ReasonCode.COMPLETED
    assert world.airflow.cleared == []


@pytest.mark.parametrize("validates", [True, False])
def test_publish_tells_the_models_asset_how_good_it_is(world: World, validates: bool) -> None:
    spec, context = started(world, validation=ValidationSpec(every_steps=50 if validates else None))
    reported = (replace(each, validation_loss=2.0) for each in steps(spec, 100, 100))
    report(world, spec, tuple(reported))
    ended(world, spec, 0)
    decide(context)
    asset = model_asset("job")
    event = SimpleNamespace(extra=None)
    publish = PublishOperator(task_id="publish", outlets=[asset])
    facts = publish.execute({**context, "outlet_events": {asset: event}})
    assert event.extra == facts
    assert facts["path"] == f"{world.runs.run_dir(spec.run_key)}/model"
    assert facts["perplexity"] == (pytest.approx(math.exp(2.0)) if validates else None)


def test_decide_clears_the_attempts_tasks_and_waits_for_them_without_a_failed_try(world: World) -> None:
    spec, context = started(world)
    ended(world, spec, 96)
    with pytest.raises(AirflowRescheduleException):
        decide(context)
    (cleared,) = world.airflow.cleared
    assert cleared["task_ids"] == ["train.place", "train.launch", "train.monitor"]
    assert not any(cleared[each] for each in ("only_failed", "include_upstream", "include_downstream"))


def test_decide_fails_for_good_when_the_trainer_refused_its_input(world: World) -> None:
    spec, context = started(world)
    ended(world, spec, 99)
    with pytest.raises(AirflowFailException, match="BAD_CONFIG_OR_DATA"):
        decide(context)
    assert world.airflow.cleared == []


def test_decide_ends_workers_whose_launch_task_is_gone(world: World) -> None:
    spec, context = started(world)
    with pytest.raises(AirflowRescheduleException):
        decide(context)
    assert world.launcher.state(spec) is WorkersState.GONE
    assert not world.view(spec.run_key).attempts[0].is_live


def test_decide_ends_workers_whose_run_directory_was_deleted_before_it_frees_their_gpus(world: World) -> None:
    spec, context = started(world)
    world.runs.clean(spec.run_key, keep_model=False, dry_run=False)
    with pytest.raises(AirflowRescheduleException):
        decide(context)
    assert world.launcher.state(spec) is WorkersState.GONE
    assert world.view(spec.run_key).lease is None


@pytest.mark.parametrize("operator", [LaunchOperator, PodLaunchOperator])
def test_a_launch_whose_time_is_up_while_it_waits_ends_its_workers_and_frees_their_gpus(
    world: World, operator: Any
) -> None:
    spec, _ = started(world)
    view = world.view(spec.run_key)
    task, context = operator(task_id="launch"), world.context("train.launch", view.run.identity)
    with pytest.raises(TaskDeferralTimeout):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert world.launcher.state(spec) is WorkersState.GONE
    after = world.view(spec.run_key)
    assert (after.lease, after.run.state) == (None, JobState.RECOVERING)


def test_decide_after_a_cancelled_run_fails_for_good(world: World) -> None:
    spec, context = started(world)
    cancel(world.services, spec.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER, detail="enough"))
    with pytest.raises(AirflowFailException, match="CANCELLED_BY_USER"):
        decide(context)
    assert world.launcher.state(spec) is WorkersState.GONE
    assert world.view(spec.run_key).run.state is JobState.CANCELLED


def test_launch_ends_workers_of_an_attempt_that_was_ended_while_they_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world.placed()
    launch = world.launcher.launch

    def slow_launch(given: Any) -> str:
        reason = Reason(code=ReasonCode.LAUNCH_FAILED, detail="Reconciliation lost patience.")
        end_attempt(world.services, spec.run_key, spec.attempt, EndReport(reason=reason))
        return launch(given)

    monkeypatch.setattr(world.launcher, "launch", slow_launch)
    context = world.context("train.launch", world.view(spec.run_key).run.identity)
    deferral(LaunchOperator(task_id="launch"), context)
    assert world.launcher.state(spec) is WorkersState.GONE


@pytest.mark.parametrize("code", [ReasonCode.QUOTA_EXCEEDED, ReasonCode.API_UNREACHABLE])
def test_a_run_that_the_cluster_does_not_take_now_is_queued_again_with_that_reason_and_is_not_charged(
    world: World, code: ReasonCode
) -> None:
    spec = world.placed()
    identity = world.view(spec.run_key).run.identity
    reason = Reason(code=code, detail="pods: 4 of 4 used")
    world.launcher.refusal = TemporaryError(reason, retry_after_s=1.0)
    with pytest.raises(AirflowException, match=code):
        LaunchOperator(task_id="launch").execute(world.context("train.launch", identity))
    assert world.view(spec.run_key).lease is None, "other jobs may have the GPUs"
    with pytest.raises(AirflowRescheduleException):
        decide(world.context("train.decide", identity))
    view = enqueue(world.services, spec.run_key)
    assert (view.status, view.reason) == (PlaceStatus.WAITING, reason)
    run = world.view(spec.run_key).run
    assert (run.state, run.num_reschedules) == (JobState.QUEUED, 0)


def test_a_refusal_whose_pods_still_leave_when_the_launch_task_ends_keeps_its_reason(world: World) -> None:
    spec, context = started(world)
    reason = Reason(code=ReasonCode.QUOTA_EXCEEDED, detail="pods: 4 of 4 used")
    world.launcher.lose(spec, reason)
    with pytest.raises(AirflowRescheduleException):
        decide(context)
    view = enqueue(world.services, spec.run_key)
    assert (view.status, view.reason) == (PlaceStatus.WAITING, reason)
    assert world.view(spec.run_key).run.num_reschedules == 0


def test_reconciliation_removes_what_is_left_of_ended_attempts_and_nothing_of_unknown_runs(world: World) -> None:
    spec, _ = started(world)
    alive, _ = started(world, name="other")
    stranger = replace(spec, run_key="stranger")
    world.launcher.launch(stranger)
    ended(world, spec, 0)
    ReconcileOperator(task_id="reconcile").execute({})
    assert world.launcher.remains() == tuple(sorted([(alive.run_key, 1), ("stranger", 1)]))


def test_reconciliation_keeps_workers_of_a_cancelled_run_from_starting_before_it_frees_their_gpus(world: World) -> None:
    spec = world.placed()
    attempt_launching(world.services, spec.run_key, spec.attempt)
    cancel(world.services, spec.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    ReconcileOperator(task_id="reconcile").execute({})
    assert world.view(spec.run_key).lease is not None
    world.launcher.launch(spec)
    assert world.launcher.state(spec) is WorkersState.GONE, "it was told before"
    ReconcileOperator(task_id="reconcile").execute({})
    assert world.view(spec.run_key).lease is None


def test_decide_gives_up_when_a_task_before_the_attempt_failed(world: World) -> None:
    run = world.registered().run
    world.airflow.task_states["train.place"] = "upstream_failed"
    with pytest.raises(AirflowFailException, match="cannot go on"):
        decide(world.context("train.decide", run.identity))
    assert world.airflow.cleared == []
    assert world.view(run.run_key).run.state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("state", "ends", "says"),
    [
        ("upstream_failed", AirflowFailException, "before train.place failed"),
        ("skipped", AirflowSkipException, "skipped"),
        ("success", AirflowFailException, "There is no training run"),
    ],
)
def test_decide_without_a_run_points_at_the_task_that_failed_or_is_skipped_with_the_group(
    world: World, state: str, ends: type[Exception], says: str
) -> None:
    identity = RunIdentity(dag_id="etl", run_id="r", task_group="train")
    world.airflow.task_states["train.place"] = state
    with pytest.raises(ends, match=says):
        decide(world.context("train.decide", identity))


def test_what_was_written_before_an_attempt_began_is_not_its_account_and_a_second_start_keeps_it(world: World) -> None:
    spec = world.placed()
    context = world.context("train.launch", world.view(spec.run_key).run.identity)
    world.runs.write_result(spec.run_key, 1, AttemptResult(exit_code=0, last_step=100, total_steps=100))
    deferral(LaunchOperator(task_id="launch"), context)
    assert world.runs.result(spec.run_key, 1) is None
    own = AttemptResult(exit_code=98, last_step=5, total_steps=100)
    world.runs.write_result(spec.run_key, 1, own)
    deferral(LaunchOperator(task_id="launch"), context)
    assert world.runs.result(spec.run_key, 1) == own


@pytest.mark.parametrize("place", ["https://127.0.0.1:8080/frenzy/api/v1/runs", "http://a.b", "/proc/self/environ"])
def test_a_job_that_reads_what_is_not_the_users_is_refused_before_anything_is_asked(world: World, place: str) -> None:
    with pytest.raises(AirflowFailException, match=r"data\.path"):
        profile(world, job=spec_document(place))
