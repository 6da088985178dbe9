"""What every use case is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from frenzy.core.lifecycle.moves import ElasticRules
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.residuals import MEMORY_MODEL
from frenzy.core.runs.ledger import Attempt, Event, RunRecord
from frenzy.core.scheduling import Policy, schedule, with_queues
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.gpu_catalogue import SoldAs, sold_as_nothing
from frenzy.core.values.queue_rules import NO_RULES, QueueRules
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.scheduling_facts import Action, SchedulingFacts
from frenzy.core.values.sources import SourceRules
from frenzy.core.values.utilisation import shares_digest
from frenzy.ports import Clock, Inventory, JobStore, LedgerStore, LedgerTx, QueueSource, RunStore


class Scheduler(Protocol):
    """What decides in a pass; ``frenzy.core.scheduling.schedule`` is the one."""

    def __call__(self, facts: SchedulingFacts, now_s: float, policy: Policy) -> tuple[Action, ...]: ...


class NoQueues:
    """An installation without shares and quotas."""

    def rules(self) -> QueueRules:
        return NO_RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The ports, and the policies that the settings chose.

    policy: without queues and quotas, which may change while the service runs (``current_policy``). lease_s: a
    lease without a heartbeat for so long is suspect. sources: from where data may be read for users. of_release: the
    calibration for another release of transformers, which scripts may have. sold_as: as of ``PlanRequest``.
    """

    clock: Clock
    ledger: LedgerStore
    runs: RunStore
    jobs: JobStore
    inventory: Inventory
    calibration: Calibration
    policy: Policy
    marp_policy: str
    lease_s: float
    elastic: ElasticRules = ElasticRules()
    queues: QueueSource = NoQueues()
    sources: SourceRules = SourceRules()
    schedule: Scheduler = schedule
    of_release: Callable[[str], Calibration] | None = None
    sold_as: SoldAs = sold_as_nothing

    @property
    def current_policy(self) -> Policy:
        """The scheduling policy, with the queues and quotas of this moment."""
        return with_queues(self.policy, self.queues.rules())

    def calibration_for(self, release: str | None) -> Calibration:
        """The coefficients for a script's ``release`` of transformers; None: the trainer's, or nobody knows.

        Raises PermanentError where none are kept.
        """
        return self.calibration if release is None or self.of_release is None else self.of_release(release)

    @property
    def predictor_versions(self) -> Mapping[str, str]:
        """What a prediction depends on beside the plan: what one predictor got wrong says nothing about another."""
        models = {"marp_policy": self.marp_policy, "memory_model": MEMORY_MODEL, "time_model": shares_digest()}
        return {**self.calibration.versions, **models}


class NotFound(PermanentError):
    """There is no such run, attempt or job."""


def require_run(tx: LedgerTx, run_key: str) -> RunRecord:
    """The run of ``run_key``; raises NotFound."""
    run = tx.run(run_key)
    if run is None:
        raise NotFound(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"There is no training run {run_key!r}."))
    return run


def candidates_of(tx: LedgerTx, run: RunRecord) -> tuple[Candidate, ...]:
    """The newest plan table of ``run``; empty before it is planned."""
    return tx.plan_tables([run.plan_table]).get(run.plan_table, ())


def require_attempt(tx: LedgerTx, run_key: str, attempt: int) -> Attempt:
    """Attempt number ``attempt`` of ``run_key``; raises NotFound."""
    for each in tx.attempts(run_key):
        if each.attempt == attempt:
            return each
    raise NotFound(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=f"Run {run_key!r} has no attempt {attempt}."))


def live_attempt(tx: LedgerTx, run_key: str) -> Attempt | None:
    """The attempt of ``run_key`` that has not ended; None if there is none."""
    return next((each for each in tx.attempts(run_key) if each.is_live), None)


def log_event(tx: LedgerTx, run_key: str, now_s: float, kind: str, text: str, attempt: int | None = None) -> None:
    """Add one line to the run's history."""
    tx.add_event(Event(run_key=run_key, time_s=now_s, kind=kind, text=text, attempt=attempt))
