"""Why a running job does not run one of its faster plans; and how many more idle GPUs would move it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from frenzy.core.scheduling.engine.entries import is_settled
from frenzy.core.scheduling.engine.plan_tables import RankedPlan, Tables
from frenzy.core.scheduling.engine.policy_settings import HasPolicy, Policy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.wording import about
from frenzy.core.scheduling.reasons.remedies import one_for_each_type, with_idle_gpus
from frenzy.core.scheduling.schedule import decide
from frenzy.core.values.job import Objective
from frenzy.core.values.scheduling_facts import Elasticity, Preempt, Resize, RunningJob, SchedulingFacts

_MAX_TYPES: Final = 3
# Cards of so many times the memory are for other jobs.
_MOST_TIMES_THE_MEMORY: Final = 16


def better_plans(facts: SchedulingFacts, job: RunningJob, now_s: float, policy: Policy) -> Iterator[str]:
    """Sentences: which of its plans it has, and for each GPU type with a faster one what would move it there.

    Nothing of a job that may not be moved. A job that is to be cheap is not told of faster plans.
    """
    if job.elasticity is None or job.plan not in job.plans or not isinstance(policy, HasPolicy):
        return
    rank, count = job.plans.index(job.plan) + 1, len(job.plans)
    best = "It runs its only plan." if count == 1 else f"It runs the best of its {count} plans."
    yield best if rank == 1 else f"It runs number {rank} of its {count} plans."
    asked = _Asked(facts, job, job.elasticity, now_s, policy)
    move = asked.move(facts)
    if isinstance(move, Preempt):
        yield "It is to stop at its next checkpoint, and to wait again."
    elif move is not None:
        yield f"It is to move to {move.plan.plan_id} at its next checkpoint."
    elif job.objective is Objective.TIME:
        yield from map(asked.sentence, asked.sooner())


@dataclass(frozen=True, slots=True)
class _Asked:
    """One running job, asked about."""

    facts: SchedulingFacts
    job: RunningJob
    elasticity: Elasticity
    now_s: float
    policy: Policy

    @property
    def left(self) -> float:
        """What is left of it, in multiples of its plans' run times."""
        return max(0.0, self.job.work_left - self.job.progress(self.now_s))

    def gain_s(self, ranked: RankedPlan) -> float:
        """How much sooner it would end with ``ranked``, its restart counted."""
        return self.left * (self.job.plan.predicted_run_s - ranked.unit_s) - self.elasticity.restart_s

    def sooner(self) -> list[RankedPlan]:
        """Of each GPU type the ranked with which it would end soonest, if that is sooner; most to gain first."""
        _, others = Tables.of(self.policy, self.facts.cluster).of_running(self.job)
        most_bytes = _MOST_TIMES_THE_MEMORY * self.job.plan.gpu_memory_bytes
        sooner = [each for each in others.plans if self.gain_s(each) > 0 and each.plan.gpu_memory_bytes <= most_bytes]
        return one_for_each_type(sooner, self.facts.cluster)[:_MAX_TYPES]

    def move(self, facts: SchedulingFacts) -> Resize | Preempt | None:
        """Where it is moved to, or that it is stopped, if these were the facts."""
        actions = decide(facts, self.now_s, self.policy)
        key = self.job.run_key
        return next((each for each in actions if isinstance(each, Resize | Preempt) and each.run_key == key), None)

    def sentence(self, ranked: RankedPlan) -> str:
        """What would move it to GPUs of the type of ``ranked``: tried, not argued.

        With as many more as the ranked takes at most: with all that a long queue could take, one try takes half a
        minute.
        """
        gpu_type, most = ranked.gpu_type, ranked.num_gpus

        def moves_there(num_gpus: int) -> bool:
            move = self.move(with_idle_gpus(self.facts, gpu_type, num_gpus))
            if not isinstance(move, Resize):
                return False
            return move.plan.gpu_type == gpu_type and move.plan.predicted_run_s < self.job.plan.predicted_run_s

        num_gpus = next(filter(moves_there, range(1, most + 1)), None)
        gain = f"With {ranked.plan.plan_id} it would end {about(self.gain_s(ranked))} sooner, its restart counted"
        if num_gpus is not None:
            return f"{gain}; {num_gpus} more idle {gpu_type} would make it move to that type's GPUs now."
        return f"{gain}; {most} more idle {gpu_type} would not move it now: {self._why_it_stays(ranked)}."

    def _why_it_stays(self, ranked: RankedPlan) -> str:
        others = [each for each in self.facts.running if each.run_key != self.job.run_key]
        limit = QuotaUse.of(self.policy, others).exceeded(self.job, ranked.gpu_type, ranked.num_gpus)
        if limit is not None:
            return f"it would be over the quota of {limit.title}"
        if not is_settled(self.job, self.now_s):
            return f"between two moves it runs for {about(self.elasticity.min_run_s)}"
        if self.job.moves_left(self.now_s) < 1:
            return "it was moved as often as it may for now"
        return "others would take them, or it gains too little" if self.facts.queued else "that gains too little"
