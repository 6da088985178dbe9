"""Why a job waits for the sake of what an administrator set: its quota, or the shares of other queues."""

from __future__ import annotations

from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.choices import Capacity
from frenzy.core.scheduling.engine.fair_share import held_by_queue, rights
from frenzy.core.scheduling.engine.options import Contender, Option
from frenzy.core.scheduling.engine.policy_settings import queue_rules
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.queue_rules import Limit
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob
from frenzy.core.values.units import counted


class QueueJudge:
    """Quotas and shares on one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._rules = queue_rules(board.state.rules.policy)
        self._held: dict[str, float] = {}
        self._rights: dict[str, float] = {}
        if self._rules.queues:
            running = [*board.state.running.values(), *board.started]
            capacity = Capacity.of(board.state.cluster)
            names = [job.queue for job in running] + [each.job.queue for each in board.state.waiting]
            self._held, self._rights = held_by_queue(running, capacity), rights(names, self._rules, capacity)

    def quota(self, contender: Contender) -> Reason | None:
        """That a quota keeps ``contender`` waiting, where one forbids all its plans or one that could start now."""
        board = self._board
        if not board.quotas.limits_of(contender.job):
            return None
        possible = [each for each in contender.options if board.fits_empty(each.need)]
        broken = [(each, limit) for each in possible if (limit := self._exceeded(contender.job, each)) is not None]
        if not broken:
            return None
        startable = [each for each in broken if board.startable(each[0]) is not None]
        if len(broken) < len(possible) and not startable:
            return None
        # The plan that lacks fewest says what helps with the smallest change.
        option, limit = min(startable or broken, key=lambda each: self._lack(*each))
        return over_quota(option.plan, limit, board.quotas.held(limit))

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

    def _exceeded(self, job: QueuedJob, option: Option) -> Limit | None:
        return self._board.quotas.exceeded(job, option.need.gpu_type, option.need.num_gpus)

    def _lack(self, option: Option, limit: Limit) -> int:
        return self._board.quotas.held(limit) + option.need.num_gpus - limit.num_gpus


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
