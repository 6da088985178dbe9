"""Reconciliation: GPUs are free once the workers are proved gone, or none can come; not before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.in_memory.ledger import InMemoryLedger
from tests.unit.app.moving import set_node
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.cancellation import cancel
from frenzy.app.inventory import refresh_inventory
from frenzy.app.observe import attempt_launching
from frenzy.app.queries import run_view
from frenzy.app.reconciliation import reconcile, reconcile_targets
from frenzy.core.runs.ledger import JobState, LeaseState
from frenzy.core.runs.protocol import DirectiveKind, ReconcileFinding, ReconcileReport, VerdictKind
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.errors import Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.launch import AttemptResult
from frenzy.ports import LedgerTx, WorkersState

BY_USER = Reason(code=ReasonCode.CANCELLED_BY_USER, detail="Pressed by a test.")


def test_an_overdue_lease_is_suspect_and_still_holds_its_gpus(airflow: Airflow) -> None:
    airflow.begun()
    airflow.clock.advance(61)
    (target,) = reconcile_targets(airflow.services)
    assert target.suspect
    assert airflow.free_gpus < 4
    airflow.step(1, 2)
    lease = run_view(airflow.services, airflow.key).lease
    assert lease is not None
    assert lease.state is LeaseState.LIVE


def test_no_writer_waits_while_the_inventory_looks_through_the_cluster(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand nodes and their pods that takes a fifth of a second."""
    ledger, inventory = airflow.services.ledger, airflow.services.inventory
    writers: list[str] = []
    begin, asked = ledger.transaction, inventory.cluster

    @contextmanager
    def transaction() -> Iterator[LedgerTx]:
        with begin() as tx:
            writers.append("holds the lock")
            yield tx
            writers.pop()

    def cluster() -> Cluster:
        assert not writers
        return asked()

    monkeypatch.setattr(ledger, "transaction", transaction)
    monkeypatch.setattr(inventory, "cluster", cluster)
    airflow.begun()
    reconcile_targets(airflow.services)


def test_an_older_answer_of_the_inventory_replaces_no_newer_one(airflow: Airflow) -> None:
    before = airflow.services.inventory.cluster()
    set_node(airflow, NodeState.DRAINING)
    with airflow.services.ledger.transaction() as tx:
        refresh_inventory(tx, before, airflow.services.inventory.cluster)
        assert tx.cluster() == airflow.services.inventory.cluster()


def test_a_pool_that_was_deleted_in_airflow_comes_back(airflow: Airflow) -> None:
    ledger = airflow.services.ledger
    assert isinstance(ledger, InMemoryLedger)
    reconcile_targets(airflow.services)
    wanted = dict(ledger._facts.pools)
    assert wanted
    ledger._facts = replace(ledger._facts, pools={})
    reconcile_targets(airflow.services)
    assert ledger._facts.pools == wanted


def break_cluster_file(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    def cluster() -> Cluster:
        raise SpecError([Violation(path="gpu_types", value="'?'", allowed="a mapping")])

    monkeypatch.setattr(airflow.services.inventory, "cluster", cluster)


def test_a_mistake_in_the_cluster_file_fails_no_run_that_is_on_and_hides_no_refusal(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = airflow.begun()
    break_cluster_file(airflow, monkeypatch)
    assert on.register(make_job()).run.state is JobState.RUNNING
    other = make_job("other")
    with pytest.raises(SpecError, match=r"data\.path"):
        airflow.another().register(replace(other, data=replace(other.data, path="https://127.0.0.1/words.txt")))


def test_a_mistake_in_the_cluster_file_keeps_no_gpus_from_being_freed(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    airflow.begun()
    break_cluster_file(airflow, monkeypatch)
    assert isinstance(airflow.services.ledger, InMemoryLedger)
    identity = run_view(airflow.services, airflow.key).run.identity
    airflow.services.ledger.over_dag_runs.add((identity.dag_id, identity.run_id))
    (target,) = reconcile_targets(airflow.services)
    assert target.stop
    assert "gpu_types" in caplog.text


def test_a_suspect_lease_is_released_once_its_workers_are_proved_gone(airflow: Airflow) -> None:
    airflow.begun()
    airflow.clock.advance(61)
    reconcile_targets(airflow.services)
    alive = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.ALIVE)
    reconcile(airflow.services, ReconcileReport(findings=(alive,)))
    assert airflow.free_gpus < 4
    gone = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE)
    summary = reconcile(airflow.services, ReconcileReport(findings=(gone,)))
    assert summary.num_released == 1
    assert airflow.free_gpus == 4
    assert airflow.decide().kind is VerdictKind.RETRY


def test_workers_that_are_gone_like_their_launch_task_are_released_though_a_monitor_renews_the_lease(
    airflow: Airflow,
) -> None:
    airflow.begun()
    gone = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE)
    reconcile(airflow.services, ReconcileReport(findings=(gone,)))
    assert airflow.free_gpus < 4, "its launch task is about to report it"
    assert isinstance(airflow.services.ledger, InMemoryLedger)
    airflow.services.ledger.over_launches.add(run_view(airflow.services, airflow.key).run.identity)
    reconcile(airflow.services, ReconcileReport(findings=(gone,)))
    assert airflow.free_gpus == 4


def test_reconciliation_takes_the_workers_own_account_where_they_left_one(airflow: Airflow) -> None:
    airflow.begun()
    airflow.clock.advance(61)
    reconcile_targets(airflow.services)
    done = AttemptResult(exit_code=0, last_step=100, total_steps=100)
    gone = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE, result=done)
    reconcile(airflow.services, ReconcileReport(findings=(gone,)))
    assert run_view(airflow.services, airflow.key).run.state is JobState.SUCCEEDED


def test_reconciliation_ends_an_attempt_whose_workers_left_an_account_that_nobody_reports(airflow: Airflow) -> None:
    airflow.begun()
    done = AttemptResult(exit_code=0, last_step=100, total_steps=100)
    gone = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.GONE, result=done)
    reconcile(airflow.services, ReconcileReport(findings=(gone,)))
    assert run_view(airflow.services, airflow.key).run.state is JobState.SUCCEEDED
    assert airflow.free_gpus == 4


def reconcile_at(airflow: Airflow, seconds: float) -> None:
    """So long later a reconciliation finds that no worker was started."""
    airflow.clock.advance(seconds)
    reconcile_targets(airflow.services)
    nobody = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.NOT_STARTED)
    reconcile(airflow.services, ReconcileReport(findings=(nobody,)))


def test_a_launch_task_that_an_executor_has_yet_to_begin_keeps_its_gpus(airflow: Airflow) -> None:
    airflow.register(make_job())
    airflow.place()
    reconcile_at(airflow, 1800)
    assert airflow.free_gpus < 4
    assert airflow.launch(1).kind is DirectiveKind.CONTINUE


@pytest.mark.parametrize(("launch_is_over", "waited_s"), [(True, 241), (False, 3601)])
def test_a_launch_that_does_not_come_gives_its_gpus_back_and_is_not_charged(
    airflow: Airflow, launch_is_over: bool, waited_s: float
) -> None:
    identity = airflow.register(make_job(max_reschedules=0)).run.identity
    airflow.place()
    if launch_is_over:
        assert isinstance(airflow.services.ledger, InMemoryLedger)
        airflow.services.ledger.over_launches.add(identity)
    reconcile_at(airflow, waited_s)
    assert airflow.free_gpus == 4
    assert airflow.launch(1).kind is DirectiveKind.ENDED, "should it come after all"
    assert airflow.decide().kind is VerdictKind.RETRY
    run = run_view(airflow.services, airflow.key).run
    assert (run.num_reschedules, run.state) == (0, JobState.RECOVERING)


def about_to_launch(airflow: Airflow) -> Airflow:
    """A placed run whose launch task was told to start workers, and has not come to it yet."""
    airflow.register(make_job())
    airflow.place()
    assert attempt_launching(airflow.services, airflow.key, 1).kind is DirectiveKind.CONTINUE
    return airflow


def test_a_reconciliation_that_looked_before_the_workers_began_frees_no_gpus_under_them(airflow: Airflow) -> None:
    about_to_launch(airflow)
    cancel(airflow.services, airflow.key, BY_USER)
    (target,) = reconcile_targets(airflow.services)
    assert target.stop
    nobody = ReconcileFinding(run_key=airflow.key, attempt=1, workers=WorkersState.NOT_STARTED)
    reconcile(airflow.services, ReconcileReport(findings=(nobody,)))
    assert airflow.free_gpus < 4, "they may begin at any moment"
    reconcile(airflow.services, ReconcileReport(findings=(replace(nobody, workers=WorkersState.GONE),)))
    assert airflow.free_gpus == 4
    assert run_view(airflow.services, airflow.key).run.state is JobState.CANCELLED


def test_a_launch_task_that_began_and_ended_without_workers_gives_its_gpus_back(airflow: Airflow) -> None:
    about_to_launch(airflow)
    assert isinstance(airflow.services.ledger, InMemoryLedger)
    airflow.services.ledger.over_launches.add(run_view(airflow.services, airflow.key).run.identity)
    reconcile_at(airflow, 241)
    assert airflow.free_gpus == 4


def test_a_launch_task_that_is_stuck_before_its_workers_is_stopped_by_the_next_reconciliation(airflow: Airflow) -> None:
    about_to_launch(airflow)
    reconcile_at(airflow, 3601)
    assert airflow.free_gpus < 4
    (target,) = reconcile_targets(airflow.services)
    assert target.stop
    assert attempt_launching(airflow.services, airflow.key, 1).kind is DirectiveKind.KILL
