"""Swaps: a job whose memory exceeded its GPUs gets larger ones from a job that fits elsewhere.

Such a job has stopped at a checkpoint, and can go on only where there is more memory. It goes before its
equals: it takes what is idle; else a running job moves for it, perhaps to the GPUs that it gave up itself. Both
run on. Of the jobs that could move, the one moves by which least time is lost.

A job is not moved for one of lower priority, before its least run time, without moves left, or when it would
lose more than the other would otherwise wait. What was given for memory is not taken back: the job is served
before its equals while it runs (``entries``), and makes nobody move by that (``shares``). So no two jobs ever
change places back and forth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum

from frenzy.core.capacity.free_capacity import place_in
from frenzy.core.capacity.queue_use import QuotaUse
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.state import Entry, SchedulingState
from frenzy.core.values.cluster import Placement
from frenzy.core.values.scheduling_facts import Action, Resize, RunningJob, Start

# Of a very large cluster's jobs only those are looked at that could lose least.
_MAX_TRIED = 64


class Refusal(StrEnum):
    """Why a running job does not move for one under memory pressure."""

    MORE_IMPORTANT = "its priority is higher"
    NOT_MOVABLE = "it may not be moved, or not yet"
    TOO_SOON = "it has not run for its least time between two moves"
    NO_MOVES = "it was moved as often as it may be for now"
    LEAVING = "its node is being drained"
    TOO_SMALL = "its GPUs would not be enough"
    NO_OTHER_PLACE = "it fits nowhere else"
    LOSES_MORE = "it would lose more time than is lost by waiting"


Swap = tuple[float, tuple[Action, ...]]
"""Seconds that both jobs lose, and what is done: one goes elsewhere, so that the other can start."""


def served_first(state: SchedulingState, now_s: float) -> tuple[tuple[Action, ...], SchedulingState]:
    """What is done for the jobs under memory pressure before all else, and ``state`` once it is done."""
    actions: tuple[Action, ...] = ()
    for entry in [each for each in state.startable if each.job.memory_constrained]:
        found = _Search(state, entry, now_s).best()
        actions, state = (*actions, *found), state.after(found, now_s)
    return actions, state


def refusals(state: SchedulingState, entry: Entry, now_s: float) -> Iterator[tuple[RunningJob, Refusal]]:
    """The jobs that hold what ``entry`` could use, each with why it does not move; none once one does."""
    search = _Search(state, entry, now_s)
    if search.best():
        return
    told: set[str] = set()
    for ranked in search.plans:
        for holder in search.holders(ranked.gpu_type):
            if holder.run_key not in told:
                told.add(holder.run_key)
                verdict = search.judged(holder, ranked)
                yield state.running[holder.run_key], verdict if isinstance(verdict, Refusal) else Refusal.LOSES_MORE


class _Search:
    """The search for one job's place among ``plans``, what it may have."""

    def __init__(self, state: SchedulingState, entry: Entry, now_s: float) -> None:
        self.state, self.entry, self.now_s = state, entry, now_s
        self._quotas = QuotaUse.of(state.policy.numbers.queues, state.running.values())
        before = [each for each in state.startable if each.job.priority > entry.job.priority]
        # What jobs of higher priority wait for is left alone.
        self._wanted = {each.gpu_type for other in before for each in state.possible(other, self._quotas)}
        possible = state.possible(entry, self._quotas)
        self.plans = [ranked for ranked in possible if ranked.gpu_type not in self._wanted]
        self._holders: dict[str, list[Entry]] = {}

    def best(self) -> tuple[Action, ...]:
        """The first plan that finds idle GPUs; else the swap by which both jobs lose least time; nothing if none."""
        for ranked in self.plans:
            placement = place_in(self.state.room, ranked.need)
            if placement is not None:
                return (self._start(ranked, placement),)
        tried = [self.judged(holder, ranked) for ranked in self.plans for holder in self._likely(ranked)]
        swaps = [each for each in tried if not isinstance(each, Refusal)]
        return min(swaps, key=lambda each: each[0])[1] if swaps else ()

    def _start(self, ranked: RankedPlan, placement: Placement) -> Start:
        return Start(run_key=self.entry.run_key, plan=ranked.plan, placement=placement)

    def holders(self, gpu_type: str) -> list[Entry]:
        """The jobs that hold GPUs of ``gpu_type``, by run key."""
        if gpu_type not in self._holders:
            keys = sorted(run_key for _, run_key in self.state.ends.get(gpu_type, ()))
            self._holders[gpu_type] = [self._holder(self.state.running[key]) for key in keys]
        return self._holders[gpu_type]

    def _holder(self, job: RunningJob) -> Entry:
        """What is left of it is told by its expected end, which may be measured, as long as that is to come."""
        entry = self.state.running_entry(job, self.now_s)
        left_s = 0.0 if job.expected_end_s is None else job.expected_end_s - self.now_s
        return entry._replace(left=left_s / max(job.plan.predicted_run_s, 1e-9)) if left_s > 0 else entry

    def judged(self, holder: Entry, ranked: RankedPlan) -> Swap | Refusal:
        """The swap by which ``holder`` makes room for ``ranked``, or why there is none."""
        refusal = self._stays(holder, ranked)
        if refusal is not None:
            return refusal
        room = self.state.room.release(holder.held.need, self.state.running[holder.run_key].placement)
        placement = place_in(room, ranked.need)
        if placement is None:
            return Refusal.TOO_SMALL
        room = room.hold(ranked.need, placement)
        for lost_s, plan in self._by_loss(holder, ranked):
            target = place_in(room, plan.need)
            if target is None:
                continue
            if holder.job.priority == self.entry.job.priority and lost_s >= self._wait_s(ranked):
                return Refusal.LOSES_MORE
            moved = Resize(run_key=holder.run_key, plan=plan.plan, placement=target)
            return lost_s + self._run_s(ranked), (moved, self._start(ranked, placement))
        return Refusal.NO_OTHER_PLACE

    def _likely(self, ranked: RankedPlan) -> list[Entry]:
        """The jobs that might move for ``ranked``; of very many, those that would lose least if any place were free."""
        movable = [each for each in self.holders(ranked.gpu_type) if self._stays(each, ranked) is None]
        movable.sort(
            key=lambda each: min((self._lost_s(each, plan, ranked) for plan in each.others.plans), default=0.0)
        )
        return movable[:_MAX_TRIED]

    def _stays(self, holder: Entry, ranked: RankedPlan) -> Refusal | None:
        """Why ``holder`` cannot be asked to move for ``ranked``."""
        job, idle = self.state.running[holder.run_key], self.state.room.idle_gpus(ranked.gpu_type)
        stays = {
            Refusal.MORE_IMPORTANT: job.priority > self.entry.job.priority,
            Refusal.NOT_MOVABLE: job.elasticity is None or not job.plans,
            Refusal.TOO_SOON: holder.is_fixed,
            Refusal.NO_MOVES: not holder.has_moves,
            Refusal.LEAVING: holder.is_displaced,
            Refusal.TOO_SMALL: idle + job.plan.num_gpus < ranked.num_gpus,
        }
        return next((refusal for refusal, is_so in stays.items() if is_so), None)

    def _by_loss(self, holder: Entry, ranked: RankedPlan) -> list[tuple[float, RankedPlan]]:
        """What ``holder`` could move to, with what it loses by that, best first."""
        current, job = holder.held, self.entry.job
        quotas = self._quotas.after(
            (holder.job, current.gpu_type, -current.num_gpus), (job, ranked.gpu_type, ranked.num_gpus)
        )
        plans = [
            (self._lost_s(holder, plan, ranked), plan)
            for plan in (current, *holder.others.plans)
            if plan.gpu_type not in self._wanted and quotas.exceeded(holder.job, plan.gpu_type, plan.num_gpus) is None
        ]
        return sorted(plans, key=lambda each: (each[0], each[1].unit_s))

    def _lost_s(self, holder: Entry, plan: RankedPlan, ranked: RankedPlan) -> float:
        """Seconds that ``holder`` loses with ``plan``: to its end, or until the other has ended and it moves back."""
        moves_back = self.state.running[holder.run_key].moves_left(self.now_s) >= 2
        return holder.lost_s(plan.unit_s, self._run_s(ranked) if moves_back else math.inf)

    def _run_s(self, ranked: RankedPlan) -> float:
        return self.entry.queued.work_left * ranked.unit_s

    def _wait_s(self, ranked: RankedPlan) -> float:
        """When jobs that end will have left as many GPUs as ``ranked`` takes; infinite if they never do."""
        num_gpus = self.state.room.idle_gpus(ranked.gpu_type)
        ends = sorted((each.run_s(each.held), each.held.num_gpus) for each in self.holders(ranked.gpu_type))
        for end_s, freed in ends:
            num_gpus += freed
            if num_gpus >= ranked.num_gpus:
                return end_s
        return math.inf
