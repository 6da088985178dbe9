"""What an attempt's agent says is installed beside its script: kept, and told where plans count on something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from frenzy.app.plan_listing import plan_facts, refusal_of_release
from frenzy.app.services import Services, log_event
from frenzy.core.runs.ledger import Attempt, RunRecord
from frenzy.core.runs.release_notice import other_transformers, release_notice
from frenzy.core.values.workload import believed_releases
from frenzy.ports import LedgerTx


def is_news(record: Attempt, reported: Mapping[str, str]) -> bool:
    """Whether ``reported`` releases can be true, and are the first of the attempt: one environment has one of each."""
    return not record.releases and bool(believed_releases(reported))


def with_releases(
    tx: LedgerTx, services: Services, run: RunRecord, record: Attempt, reported: Mapping[str, str], now_s: float
) -> Attempt:
    """``record`` with what was ``reported``; what the run's plan was not made for is told once in its history."""
    if not is_news(record, reported):
        return record
    found, own = believed_releases(reported), services.calibration.versions
    other = other_transformers(run.job, found, own)
    refusal = None if other is None else refusal_of_release(plan_facts(tx, services, run), services, run, other)
    text = release_notice(run.job, found, own, refusal)
    if text and all(each.text != text for each in tx.events(run.run_key)):
        log_event(tx, run.run_key, now_s, "releases", text, record.attempt)
    return replace(record, releases=found)
