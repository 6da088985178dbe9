"""Heartbeats that change nothing else, in every ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract import values

from frenzy.core.runs.ledger import JobState, LeaseState
from frenzy.ports import LeasedAttempt, LedgerStore


@pytest.fixture
def leased(ledger: LedgerStore) -> LeasedAttempt:
    """An attempt that runs, and its lease."""
    run = values.run(state=JobState.RUNNING)
    attempt, lease = replace(values.attempt(run.run_key), stop_reason=None), values.lease(run.run_key, n1=2)
    with ledger.transaction() as tx:
        tx.put_cluster(values.cluster())
        tx.put_run(run)
        tx.put_attempt(attempt)
        tx.put_lease(lease)
    return LeasedAttempt(attempt=attempt, lease=lease)


def later(leased: LeasedAttempt) -> LeasedAttempt:
    lease = replace(leased.lease, heartbeat_s=50.0, expires_s=110.0)
    return LeasedAttempt(attempt=replace(leased.attempt, last_step=5), lease=lease)


def kept(ledger: LedgerStore, leased: LeasedAttempt) -> LeasedAttempt:
    with ledger.reading() as tx:
        (attempt,) = tx.attempts(leased.attempt.run_key)
        lease = tx.lease(leased.lease.run_key, leased.lease.attempt)
    assert lease is not None
    return LeasedAttempt(attempt=attempt, lease=lease)


def test_a_heartbeat_renews_what_is_as_it_was(ledger: LedgerStore, leased: LeasedAttempt) -> None:
    assert ledger.renew(leased, later(leased))
    assert kept(ledger, leased) == later(leased)
    assert not ledger.renew(leased, later(leased)), "that is what it was before"


def test_a_heartbeat_leaves_alone_what_a_writer_has_changed(ledger: LedgerStore, leased: LeasedAttempt) -> None:
    asked = replace(leased.attempt, stop_reason=values.ENDED)
    with ledger.transaction() as tx:
        tx.put_attempt(asked)
    assert not ledger.renew(leased, later(leased))
    assert kept(ledger, leased) == LeasedAttempt(attempt=asked, lease=leased.lease)


def test_a_heartbeat_revives_no_lease_that_has_ended(ledger: LedgerStore, leased: LeasedAttempt) -> None:
    ended = replace(leased.lease, state=LeaseState.ENDED, ended_s=2.0, end_reason=values.ENDED)
    with ledger.transaction() as tx:
        tx.put_lease(ended)
    assert not ledger.renew(leased, later(leased))
    assert kept(ledger, leased).lease == ended
    with ledger.transaction() as tx:
        tx.put_run(other := values.run("other"))
        tx.put_lease(values.lease(other.run_key, n1=2))
    assert not ledger.renew(leased, later(leased))
    with ledger.reading() as tx:
        assert [each.run_key for each in tx.held_leases()] == [other.run_key]
