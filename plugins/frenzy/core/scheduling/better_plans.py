"""Why a running job does not run one of its faster plans; and how many more idle GPUs would move it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from frenzy.core.scheduling.engine.entries import believed_left, is_settled
from frenzy.core.scheduling.engine.plan_tables import Capacity, RankedPlan, Tables
from frenzy.core.scheduling.engine.policy_settings import HasPolicy, Policy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.wording import about
from frenzy.core.scheduling.reasons.remedies import one_for_each_type, with_idle_gpus
from frenzy.core.scheduling.schedule import decide
from frenzy.core.values.job import Objective
from frenzy.core.values.resource_plan import ResourcePlan
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
    facts: SchedulingFacts
    job: RunningJob
    elasticity: Elasticity
    now_s: float
    policy: HasPolicy

    def gain_s(self, plan: ResourcePlan) -> float:
        """How much sooner it would end with ``plan``, its restart counted, by what the engine believes is left."""
        progress = self.job.progress(self.now_s)
        left = believed_left(self.job.work_left - progress, self.job.work_done + progress, self.policy)
        return left * (self.job.plan.predicted_run_s - plan.predicted_run_s) - self.elasticity.restart_s

    def sooner(self) -> list[RankedPlan]:
        """Of each GPU type the plan with which it would end soonest, if that is sooner; most to gain first."""
        _, others = Tables.of(self.policy, Capacity.of(self.facts.cluster)).of_running(self.job)
        most_bytes = _MOST_TIMES_THE_MEMORY * self.job.plan.gpu_memory_bytes
        usual = (each for each in others.plans if each.plan.gpu_memory_bytes <= most_bytes)
        sooner = (each for each in usual if self.gain_s(each.plan) > 0)
        return one_for_each_type(sooner, self.facts.cluster)[:_MAX_TYPES]

    def move(self, facts: SchedulingFacts) -> Resize | Preempt | None:
        """Where it is moved to, or that it is stopped, if these were the facts."""
        actions, key = decide(facts, self.now_s, self.policy), self.job.run_key
        return next((each for each in actions if isinstance(each, Resize | Preempt) and each.run_key == key), None)

    def sentence(self, ranked: RankedPlan) -> str:
        """What would move it to GPUs of the type of ``ranked``: tried, not argued."""
        # Not with all that a long queue could take: one try takes half a minute.
        gpu_type, most = ranked.gpu_type, ranked.num_gpus
        for num_gpus in range(1, most + 1):
            move = self.move(with_idle_gpus(self.facts, gpu_type, num_gpus))
            if isinstance(move, Resize) and move.plan.gpu_type == gpu_type and self.gain_s(move.plan) > 0:
                return (
                    f"{num_gpus} more idle {gpu_type} would make it move to {move.plan.plan_id} now and end "
                    f"{about(self.gain_s(move.plan))} sooner, its restart counted."
                )
        return (
            f"With {ranked.plan.plan_id} it would end {about(self.gain_s(ranked.plan))} sooner, its restart counted; "
            f"{most} more idle {gpu_type} would not move it now: {self._why_it_stays(ranked)}."
        )

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
