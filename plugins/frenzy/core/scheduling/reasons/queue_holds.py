"""Why a job waits for the sake of what an administrator set: its quota, or the shares of other queues."""

from __future__ import annotations

from frenzy.core.scheduling.engine.fair_share import held_by_queue, rights
from frenzy.core.scheduling.engine.plan_tables import Capacity
from frenzy.core.scheduling.engine.policy_settings import queue_rules
from frenzy.core.scheduling.engine.state import SchedulingState
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.queue_rules import Limit
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob
from frenzy.core.values.units import counted


class QueueJudge:
    """The shares of queues, once what is decided is done."""

    def __init__(self, state: SchedulingState) -> None:
        self._held: dict[str, float] = {}
        self._rights: dict[str, float] = {}
        rules = queue_rules(state.rules.policy)
        if rules.queues:
            capacity = Capacity.of(state.cluster)
            names = [job.queue for job in state.running.values()] + [each.job.queue for each in state.waiting]
            self._held = held_by_queue(state.running.values(), capacity)
            self._rights = rights(names, rules, capacity)

    def share(self, job: QueuedJob) -> Reason | None:
        """That ``job`` waits because its queue holds its share while others do not; None if that is not so."""
        if len(self._rights) < 2 or self._held.get(job.queue, 0.0) < self._rights[job.queue]:
            return None
        held, right = self._held[job.queue], self._rights[job.queue]
        others = [name for name in self._rights if name != job.queue and self._held.get(name, 0.0) > 0]
        if not others:
            return None
        total = sum(self._rights.values())
        return Reason(
            code=ReasonCode.WAITING_FOR_SHARE,
            detail=(
                f"Queue {job.queue} holds {held:.3g} of the {total:.3g} GPUs (counted by speed), its share is "
                f"{right:.3g}; too few are idle to borrow."
            ),
            remedy=f"a job of queue {job.queue} ended, GPUs left idle by another queue, or a greater weight",
        )


def over_quota(plan: ResourcePlan, limit: Limit, held: int) -> Reason:
    """That ``limit``, against which ``held`` GPUs count, leaves no room for ``plan``."""
    return Reason(
        code=ReasonCode.WAITING_FOR_QUOTA,
        detail=(
            f"{limit.title.capitalize()} may hold {_gpus(limit.num_gpus, limit)} and holds {held}; "
            f"{plan.plan_id} needs {plan.num_gpus}."
        ),
        remedy=f"a larger quota of {limit.title}, or GPUs given back by it",
    )


def _gpus(number: int, limit: Limit) -> str:
    """GPUs of the type that ``limit`` is on, or of any."""
    return counted(number, "GPU") if limit.gpu_type is None else f"{number} {limit.gpu_type}"
