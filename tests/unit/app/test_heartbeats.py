"""Which reports wait for the ledger's writers, and what those that do not are answered."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from tests.in_memory.ledger import InMemoryLedger
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.cancellation import cancel
from frenzy.app.observe import report_progress
from frenzy.app.queries import run_view
from frenzy.app.services import require_attempt, require_run
from frenzy.core.runs.ledger import JobState, LeaseState
from frenzy.core.runs.protocol import DirectiveKind, ProgressReport
from frenzy.core.values.errors import ContractError, Reason, ReasonCode
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.ports import LeasedAttempt, LedgerTx

PREEMPTED = Reason(code=ReasonCode.PREEMPTED, detail="Another is to run there.")


class CountingLedger(InMemoryLedger):
    """Counts its writers. meddle: what one does just before each heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.num_writers = 0
        self.meddle = None

    def transaction(self) -> AbstractContextManager[LedgerTx]:
        self.num_writers += 1
        return super().transaction()

    def renew(self, before: LeasedAttempt, after: LeasedAttempt) -> bool:
        if self.meddle is not None:
            self.meddle()
        num_writers = self.num_writers
        done = super().renew(before, after)
        self.num_writers = num_writers
        return done


@pytest.fixture
def ledger(airflow: Airflow) -> CountingLedger:
    ledger = CountingLedger()
    with airflow.services.ledger.reading() as known, ledger.transaction() as tx:
        tx.put_cluster(known.cluster())
    return ledger


@pytest.fixture
def running(airflow: Airflow, ledger: CountingLedger) -> Airflow:
    """A job after its first step, for longer than the least time between two moves."""
    job = replace(airflow, services=replace(airflow.services, ledger=ledger)).begun()
    job.clock.advance(61)
    job.step(1, 2)
    return job


def writers_of(ledger: CountingLedger, job: Airflow, step: int) -> int:
    before = ledger.num_writers
    job.step(1, step)
    return ledger.num_writers - before


def test_a_report_that_changes_no_state_waits_for_no_writer(running: Airflow, ledger: CountingLedger) -> None:
    running.clock.advance(10)
    assert writers_of(ledger, running, 7) == 0
    with ledger.reading() as tx:
        attempt, lease = require_attempt(tx, running.key, 1), tx.lease(running.key, 1)
    assert attempt.last_step == 7
    assert lease is not None and lease.expires_s == running.clock.now_s() + running.services.lease_s


def test_the_first_step_and_the_time_from_which_it_may_be_moved_take_the_lock(
    airflow: Airflow, ledger: CountingLedger
) -> None:
    job = replace(airflow, services=replace(airflow.services, ledger=ledger))
    job.register(make_job())
    job.place()
    job.launch(1)
    assert writers_of(ledger, job, 1) == 1
    with ledger.reading() as tx:
        assert require_run(tx, job.key).state is JobState.RUNNING
    job.clock.advance(30)
    assert writers_of(ledger, job, 2) == 0
    job.clock.advance(31)
    assert writers_of(ledger, job, 3) == 1
    assert writers_of(ledger, job, 4) == 0


def test_a_suspect_lease_is_revived_under_the_lock(running: Airflow, ledger: CountingLedger) -> None:
    with ledger.transaction() as tx:
        lease = tx.lease(running.key, 1)
        assert lease is not None
        tx.put_lease(replace(lease, state=LeaseState.SUSPECT))
    assert writers_of(ledger, running, 8) == 1
    with ledger.reading() as tx:
        revived = tx.lease(running.key, 1)
    assert revived is not None and revived.state is LeaseState.LIVE


def test_a_report_that_meets_a_writer_takes_the_lock_and_hears_what_was_asked(
    running: Airflow, ledger: CountingLedger
) -> None:
    def ask() -> None:
        ledger.meddle = None
        with ledger.transaction() as tx:
            tx.put_attempt(replace(require_attempt(tx, running.key, 1), stop_reason=PREEMPTED))

    ledger.meddle = ask
    assert running.step(1, 8).kind is DirectiveKind.CHECKPOINT_AND_STOP
    with ledger.reading() as tx:
        attempt = require_attempt(tx, running.key, 1)
    assert (attempt.stop_reason, attempt.last_step) == (PREEMPTED, 8)


def test_what_the_ledger_wants_is_told_without_the_lock(running: Airflow, ledger: CountingLedger) -> None:
    with ledger.transaction() as tx:
        tx.put_attempt(replace(require_attempt(tx, running.key, 1), stop_reason=PREEMPTED))
    before = ledger.num_writers
    assert running.step(1, 8).kind is DirectiveKind.CHECKPOINT_AND_STOP
    assert ledger.num_writers == before
    cancel(running.services, running.key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    before = ledger.num_writers
    assert running.step(1, 9).kind is DirectiveKind.KILL
    assert ledger.num_writers == before
    running.end(1, 143)
    before = ledger.num_writers
    assert running.step(1, 9).kind is DirectiveKind.ENDED
    assert ledger.num_writers == before


def test_a_report_that_cannot_be_true_is_refused_without_the_lock(running: Airflow, ledger: CountingLedger) -> None:
    before = ledger.num_writers
    with pytest.raises(ContractError, match="last_step"):
        running.step(1, 10**6)
    assert ledger.num_writers == before
    with ledger.reading() as tx:
        assert require_attempt(tx, running.key, 1).last_step == 2


def test_an_older_report_takes_nothing_back(running: Airflow, ledger: CountingLedger) -> None:
    running.step(1, 9)
    assert running.step(1, 3).kind is DirectiveKind.CONTINUE
    with ledger.reading() as tx:
        assert require_attempt(tx, running.key, 1).last_step == 9


def test_a_monitor_that_was_started_anew_and_knows_of_less_takes_nothing_back(running: Airflow) -> None:
    """It reads the attempt's telemetry from its beginning, part by part, and reports meanwhile."""
    peaks = PeakMemory(allocated_bytes=700, reserved_bytes=900, device_used_bytes=900)
    grown = ProgressReport(
        last_step=90, last_loss=1.0, step_time_s=2.0, peaks=peaks, explained_peak_bytes=500, growth_step=40
    )
    partial = ProgressReport(
        last_step=30, last_loss=4.0, step_time_s=9.0, peaks=PeakMemory(allocated_bytes=450), explained_peak_bytes=450
    )
    for each in (grown, partial):
        report_progress(running.services, running.key, 1, each)
    (attempt,) = run_view(running.services, running.key).attempts
    assert (attempt.last_step, attempt.last_loss, attempt.step_time_s) == (90, 1.0, 2.0)
    assert (attempt.peaks, attempt.explained_peak_bytes, attempt.growth_step) == (peaks, 500, 40)


def test_memory_that_grew_is_explained_by_what_was_before_it(running: Airflow) -> None:
    for peak, explained, growth_step in ((600, 600, None), (700, 550, 40)):
        peaks = PeakMemory(allocated_bytes=peak)
        message = ProgressReport(
            last_step=peak // 10, peaks=peaks, explained_peak_bytes=explained, growth_step=growth_step
        )
        report_progress(running.services, running.key, 1, message)
    (attempt,) = run_view(running.services, running.key).attempts
    assert (attempt.measured_peak_bytes, attempt.explained_peak_bytes) == (700, 550)
