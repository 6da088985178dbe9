"""The data are prepared by a process that the task watches, and what comes of it is the ledger's."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DownstreamTasksSkipped, TaskDeferred
from tests.unit.airflow.conftest import World
from tests.unit.airflow.operators.test_operators import spec_document
from tests.unit.airflow.triggering import Run, belongs_to, first_event, until
from tests.unit.app.test_preparing import FOUND
from tests.unit.web.conftest import registration

from frenzy.airflow.operators.operators import PrepareOperator, ReconcileOperator
from frenzy.airflow.operators.task_group import frenzy_training
from frenzy.airflow.tasks.workers import using, workers
from frenzy.airflow.triggers.until_prepared import PrepareTrigger
from frenzy.app.cancellation import cancel
from frenzy.app.preparing import preparing
from frenzy.core.runs.ledger import JobState, RunRecord
from frenzy.core.runs.protocol import PreparingReport
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.prepared_data import PreparedData, PreparingResult, PreparingSpec
from frenzy.core.values.run_files import ExitCode
from frenzy.core.values.telemetry import Heartbeat
from frenzy.ports import PreparerAccount, WorkersState
from frenzy.settings import LauncherKind

GONE = PreparerAccount(state=WorkersState.GONE, exit_code=1)
KILLED = PreparerAccount(state=WorkersState.GONE, exit_code=137)
BY_USER = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="not wanted any more")


def found_of(run: RunRecord) -> PreparedData:
    return PreparedData(
        shards=FOUND.shards,
        tokenizer=FOUND.tokenizer,
        digest=FOUND.digest,
        num_tokens=10_000,
        num_train=70,
        num_validation=8,
        total_steps=run.job.training.max_steps or 0,
    )


def ends(world: World, result: PreparingResult | None, account: PreparerAccount = GONE) -> None:
    """Processes that are started from now on end at once, and so."""

    def play(spec: PreparingSpec) -> None:
        if result is not None:
            world.runs.preparing_results[spec.folder] = result
        world.preparer.accounts[spec.run_key] = account

    world.preparer.on_start = play


def context(world: World, run: RunRecord, *, tries_left: int = 1) -> dict[str, Any]:
    found = world.context("train.prepare", run.identity)
    found["ti"].try_number, found["ti"].max_tries = 1, tries_left
    return found


def test_what_the_process_made_is_frozen_in_the_ledger(world: World) -> None:
    run = world.registered().run
    ends(world, PreparingResult(exit_code=0, prepared=found_of(run)))
    summary = PrepareOperator(task_id="prepare").execute(context(world, run))
    assert summary is not None
    assert summary["num_tokens"] == 10_000
    assert world.view(run.run_key).run.prepared == found_of(run)
    again = PrepareOperator(task_id="prepare").execute(context(world, run))
    assert again is None
    assert len(world.preparer.started) == 1


def test_the_ledger_knows_what_was_prepared_before_the_process_is_let_go(world: World) -> None:
    """In between the task may be killed: what a pod that is deleted had made would be made again."""
    run, seen = world.registered().run, []
    ends(world, PreparingResult(exit_code=0, prepared=found_of(run)))
    world.preparer.on_stop = lambda run_key: seen.append(world.view(run_key).run.state)
    PrepareOperator(task_id="prepare").execute(context(world, run))
    assert seen == [JobState.PREPARING, JobState.PLANNED]


def test_a_process_that_was_killed_is_tried_again_and_the_last_try_ends_the_run(world: World) -> None:
    run = world.registered().run
    ends(world, None, KILLED)
    with pytest.raises(AirflowException, match="SIGKILL") as caught:
        PrepareOperator(task_id="prepare").execute(context(world, run))
    assert not isinstance(caught.value, AirflowFailException)
    assert world.view(run.run_key).run.state is JobState.PREPARING
    with pytest.raises(AirflowFailException, match="DATA_NOT_PREPARED"):
        PrepareOperator(task_id="prepare").execute(context(world, run, tries_left=0))
    assert world.view(run.run_key).run.state is JobState.FAILED_SETUP
    assert [each.number for each in world.preparer.started] == [1, 2]


def test_data_that_are_refused_are_not_tried_again(world: World) -> None:
    run = world.registered().run
    ends(world, PreparingResult(exit_code=ExitCode.BAD_CONFIG_OR_DATA, detail="data.path: 'x' is refused"))
    with pytest.raises(AirflowFailException, match="data.path"):
        PrepareOperator(task_id="prepare").execute(context(world, run))
    reason = world.view(run.run_key).run.reason
    assert reason is not None
    assert reason.code is ReasonCode.BAD_CONFIG_OR_DATA


def test_a_run_that_is_cancelled_ends_the_process(world: World) -> None:
    run = world.registered().run
    world.preparer.on_start = lambda spec: cast(None, cancel(world.services, spec.run_key, BY_USER))
    with pytest.raises(AirflowFailException, match="not wanted any more"):
        PrepareOperator(task_id="prepare").execute(context(world, run))
    assert world.preparer.remains() == ()


def deferred(world: World, run: RunRecord) -> PrepareTrigger:
    on_kubernetes = replace(workers(), settings=replace(workers().settings, launcher=LauncherKind.KUBERNETES))
    with using(on_kubernetes), pytest.raises(TaskDeferred) as caught:
        PrepareOperator(task_id="prepare").execute(context(world, run))
    trigger = caught.value.trigger
    assert isinstance(trigger, PrepareTrigger)
    return trigger


def test_on_kubernetes_the_task_waits_deferred_and_a_new_try_finds_the_pod_at_work(world: World) -> None:
    run = world.registered().run
    assert deferred(world, run).number == 1
    assert deferred(world, run).number == 1
    assert len(world.preparer.started) == 1


def test_the_trigger_tells_how_far_it_is_and_hands_the_end_back(world: World, run_async: Run) -> None:
    run = world.registered().run
    trigger = deferred(world, run)
    spec = world.preparer.started[0]
    world.runs.preparing_signs[spec.folder] = Heartbeat(phase="tokens made", time_s=1.0, done=7)
    result = PreparingResult(exit_code=0, prepared=found_of(run))
    world.runs.preparing_results[spec.folder] = result
    world.preparer.accounts[run.run_key] = GONE
    event = run_async(first_event(trigger))
    assert event.payload == encode(result)
    task = PrepareOperator(task_id="prepare")
    assert task.resume(context(world, run), event.payload)["num_tokens"] == 10_000
    assert world.view(run.run_key).run.state is JobState.PLANNED


def test_the_trigger_ends_the_pod_of_a_run_that_is_cancelled(world: World, run_async: Run) -> None:
    run = world.registered().run
    trigger = deferred(world, run)
    cancel(world.services, run.run_key, BY_USER)
    event = run_async(first_event(trigger))
    task = PrepareOperator(task_id="prepare")
    with pytest.raises(AirflowFailException, match="not wanted any more"):
        task.resume(context(world, run), event.payload)
    assert world.preparer.remains() == ()


def test_a_task_that_a_person_ended_cancels_the_run_and_ends_the_pod(world: World, run_async: Run) -> None:
    run = world.registered().run
    trigger = deferred(world, run)
    belongs_to(trigger, world, "train.prepare", "failed")

    async def kill() -> None:
        await trigger.on_kill()
        await until(lambda: world.preparer.remains() == ())

    run_async(kill())
    assert world.view(run.run_key).run.state is JobState.CANCELLED


def test_a_task_that_ended_with_its_data_in_another_triggerer_keeps_the_run(world: World, run_async: Run) -> None:
    run = world.registered().run
    trigger = deferred(world, run)
    with world.services.ledger.transaction() as tx:
        tx.put_run(replace(run, prepared=found_of(run)))
    belongs_to(trigger, world, "train.prepare", "success")
    run_async(trigger.on_kill())
    assert not world.view(run.run_key).run.cancel_requested


def test_reconciliation_ends_what_prepares_for_a_run_that_is_over(world: World) -> None:
    run = world.registered().run
    deferred(world, run)
    ReconcileOperator(task_id="reconcile").execute({})
    assert world.preparer.remains() == (run.run_key,)
    cancel(world.services, run.run_key, BY_USER)
    ReconcileOperator(task_id="reconcile").execute({})
    assert world.preparer.remains() == ()


def profile_in_a_group(world: World, data: str, **data_section: Any) -> tuple[Any, list[Any]]:
    """The profile task of a group, run; and what it skipped."""
    with DAG("job_words"):
        document = spec_document(data)
        group = frenzy_training({**document, "data": {**document["data"], **data_section}})
    pushed: list[Any] = []
    identity = registration("words").identity
    task = SimpleNamespace(
        task_id="train.profile",
        dag_id=identity.dag_id,
        run_id=identity.run_id,
        map_index=-1,
        try_number=1,
        xcom_push=lambda key, value: pushed.append(value),
    )
    operator = cast(Any, group.children["train.profile"])
    try:
        return operator.execute({"ti": task}), []
    except DownstreamTasksSkipped as skipped:
        return pushed[0], skipped.tasks


@pytest.mark.parametrize(("above", "skipped"), [("1000", []), ("2000", [("train.prepare", -1)])])
def test_small_data_are_left_to_the_workers(
    world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, above: str, skipped: list[Any]
) -> None:
    monkeypatch.setenv("FRENZY_PREPARE_ABOVE_TOKENS", above)
    (tmp_path / "words.txt").write_text("to be or not to be\n" * 60, encoding="utf-8")
    summary, found = profile_in_a_group(world, str(tmp_path / "words.txt"))
    assert summary["num_plans"] > 0
    assert found == skipped


def test_conversations_are_prepared_before_gpus_are_held_however_few(world: World, tmp_path: Any) -> None:
    row = {"messages": [{"role": "user", "content": "to be?"}, {"role": "assistant", "content": "or not"}]}
    (tmp_path / "chats.jsonl").write_text("\n".join([json.dumps(row)] * 60), encoding="utf-8")
    messages = {"template": "{% generation %}{{ messages }}{% endgeneration %}"}
    summary, found = profile_in_a_group(world, str(tmp_path / "chats.jsonl"), messages=messages)
    assert summary["num_plans"] > 0
    assert found == []


def test_a_report_for_a_run_that_nobody_knows_is_refused(world: World) -> None:
    with pytest.raises(Exception, match="There is no training run"):
        preparing(world.services, "nobody", PreparingReport(begins=True))
