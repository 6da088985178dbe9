"""Where no job is moved: the same sweep over the jobs that wait, each placed at its turn.

A job that finds no place, or had better wait (``min_gain``, within ``max_wait_share``), is promised the one with which
it ends soonest if running jobs end as expected. There is one promise for each GPU type; jobs behind may use what it
leaves, or what they give back by then.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field, replace
from typing import ClassVar

from frenzy.core.capacity.free_capacity import FreeCapacity, Need, place
from frenzy.core.capacity.queue_use import QuotaUse, held_by_queue
from frenzy.core.scheduling.engine.job_plans import RankedPlan
from frenzy.core.scheduling.engine.left_over import Kept, Promise, Sweep, Timeline
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy, FifoPolicy
from frenzy.core.scheduling.engine.service_order import ServiceOrder, entries_of
from frenzy.core.scheduling.engine.shares import serve
from frenzy.core.scheduling.engine.state import Entry, SchedulingState
from frenzy.core.values.cluster import Placement
from frenzy.core.values.scheduling_facts import RunningJob, Start

Key = tuple[bool, float, float]


def decide(state: SchedulingState, now_s: float) -> tuple[tuple[Start, ...], SchedulingState, StartSweep]:
    """Starts; the state once they are done; and the last sweep, which starts nothing: the record of all that wait."""
    starts: list[Start] = []
    while (found := sweep(state, now_s)).started:
        begun = [Start(run_key=key, plan=job.plan, placement=job.placement) for key, job in found.started.items()]
        state = state.after(begun, now_s)
        starts += begun
    return tuple(starts), state, found


def sweep(state: SchedulingState, now_s: float) -> StartSweep:
    """One sweep over the jobs that wait."""
    policy, capacity, running = state.policy.numbers, state.capacity, state.running.values()
    idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
    quotas = QuotaUse.of(policy.queues, running)
    line = ServiceOrder.of(entries_of(state, now_s, moves=False), now_s)
    found = StartSweep(policy, capacity, line, idle, dict(idle), quotas, state=state, room=state.room)
    serve(found, held_by_queue(running, capacity))
    return found


@dataclass(slots=True, kw_only=True)
class StartSweep(Sweep):
    """A sweep in which nobody moves.

    promises: those that are kept, by GPU type. _behind_s: by GPU type the end of the last that is to start there.
    _nowhere: what found no place in all that is idle (False), or what a promise leaves.
    """

    moves: ClassVar[bool] = False
    state: SchedulingState
    room: FreeCapacity
    started: dict[str, RunningJob] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    _behind_s: dict[str, float] = field(default_factory=dict)
    _timelines: dict[str, Timeline] = field(default_factory=dict)
    _nowhere: set[tuple[bool, Need]] = field(default_factory=set)

    @property
    def now_s(self) -> float:
        return self.line.now_s

    def has_place(self, entry: Entry, ranked: RankedPlan) -> bool:
        """Whether ``ranked`` can start now without breaking a promise."""
        return self._place(entry, ranked) is not None

    def _keep(self, entry: Entry, ranked: RankedPlan, sign: int) -> None:
        """Start ``ranked``, or take the start of it back."""
        Sweep._keep(self, entry, ranked, sign)
        if sign > 0:
            self._release_promise(entry)
            placement = self._place(entry, ranked)
            assert placement is not None, "only what has a place is taken"
            self.started[entry.run_key] = entry.queued.started(ranked.plan, placement, now_s=self.now_s)
            self.room = self.room.hold(ranked.need, placement)
        else:
            placement = self.started.pop(entry.run_key).placement
            self.room = self.room.release(ranked.need, placement)
            self._nowhere.clear()
        self._timelines.pop(ranked.gpu_type, None)
        promise = self._promise_before_end(entry, ranked)
        if promise is not None:
            promise.narrow(ranked.need, placement, sign)

    def _promise_before_end(self, entry: Entry, ranked: RankedPlan) -> Promise | None:
        """The promise of GPUs of its type that ``ranked``, started now, would not leave in time."""
        promise, end_s = self.promises.get(ranked.gpu_type), self.now_s + entry.restart_s + entry.run_s(ranked)
        if promise is None or promise.entry is entry or end_s <= promise.start_s < math.inf:
            return None
        return promise

    def _place(self, entry: Entry, ranked: RankedPlan) -> Placement | None:
        need, room, promise = ranked.need, self.room.by_type[ranked.gpu_type], self._promise_before_end(entry, ranked)
        key = promise is not None, need
        if need.num_gpus > room.idle_gpus or key in self._nowhere:
            return None
        placement = place(room if promise is None else promise.spare(room), need)
        if placement is None:
            self._nowhere.add(key)
        return placement

    def found(self) -> tuple[dict[str, int], dict[str, Kept]]:
        """What is left now, less what is kept for those that are promised it."""
        if self.head is not None:
            idle = {gpu_type: room.idle_gpus for gpu_type, room in self.room.by_type.items()}
            return dict.fromkeys(idle, 0), {name: Kept(self.head, num_gpus) for name, num_gpus in idle.items()}
        left, kept = dict(self.left), dict[str, Kept]()
        for gpu_type, promise in self.promises.items():
            room = self.room.by_type[gpu_type]
            left[gpu_type] = promise.spare(room).idle_gpus
            kept[gpu_type] = Kept(promise.entry, room.idle_gpus - left[gpu_type], promise.start_s)
        return left, kept

    def keep_for(self, entry: Entry, price: float) -> None:
        """Promise a place to ``entry``, which found none, or let it block all behind it."""
        policy = self.state.policy
        if isinstance(policy, FifoPolicy):
            if self.head is None and any(self.possible_of(entry)):
                self.head, self._turn = entry, None
        elif all(gpu_type in self.promises for gpu_type, _ in entry.others.ask.fewest_gpus):
            return
        elif isinstance(policy, BackfillPolicy) and entry.run_key not in self.own_promises:
            found = self._best(entry, price, None)
            if found is not None:
                self._promised(found)

    def waits_for_better(self, entry: Entry, best: RankedPlan, price: float) -> bool:
        """Whether ``entry`` had better wait than start ``best`` now; then it is promised what it waits for.

        The ladder's order is not one of speed: such a job takes what it can get.
        """
        if entry.in_order:
            return False
        # What it was promised within its queue's right is not promised anew when it may borrow.
        found = self.own_promises.get(entry.run_key) or self._best(entry, price, best)
        if found is None or not self._is_patient(entry, found.start_s) or not self._pays(entry, best, found, price):
            return False
        self._promised(replace(found, instead_of=best))
        return True

    def _release_promise(self, entry: Entry) -> None:
        """``entry`` starts with something else than it was promised."""
        promise = self.own_promises.pop(entry.run_key, None)
        if promise is not None and promise.is_kept:
            del self.promises[promise.ranked.gpu_type]
            self._behind_s.pop(promise.ranked.gpu_type, None)
            self._nowhere.clear()

    def _promised(self, promise: Promise) -> None:
        gpu_type = promise.ranked.gpu_type
        self.own_promises[promise.entry.run_key] = promise
        self._behind_s[gpu_type] = promise.end_s
        if promise.is_kept:
            self.promises[gpu_type] = promise
            self._nowhere = {each for each in self._nowhere if each[1].gpu_type != gpu_type or not each[0]}
            self._turn = None

    def _best(self, entry: Entry, price: float, instead_of: RankedPlan | None) -> Promise | None:
        """The promise with which ``entry`` fares best; better than ``instead_of``, also behind another's promise."""
        soonest = [
            (self._key(entry, each, self._soonest_s(each), price), each)
            for each in self.possible_of(entry)
            if (instead_of is not None or each.gpu_type not in self.promises) and each is not instead_of
        ]
        bound = None if instead_of is None else self._key(entry, instead_of, self.now_s, price)
        best: Promise | None = None
        for least, ranked in sorted(soonest, key=lambda each: each[0]):
            if bound is not None and least >= bound:
                break
            found = self._promise(entry, ranked, instead_of)
            key = least if found is None else self._key(entry, ranked, found.start_s, price)
            if found is not None and (bound is None or key < bound):
                best, bound = found, key
        return best

    def _soonest_s(self, ranked: RankedPlan) -> float:
        """A time before which ``ranked`` cannot start."""
        return max(self._behind_s.get(ranked.gpu_type, self.now_s), self._timeline(ranked).soonest(ranked.num_gpus))

    def _promise(self, entry: Entry, ranked: RankedPlan, instead_of: RankedPlan | None) -> Promise | None:
        if ranked.gpu_type in self.promises:
            return Promise(entry, ranked, self._soonest_s(ranked), instead_of)
        found = self._timeline(ranked).earliest(ranked.need)
        return None if found is None else Promise(entry, ranked, found[0], instead_of, *found[1:])

    def _key(self, entry: Entry, ranked: RankedPlan, start_s: float, price: float) -> Key:
        """What ``ranked`` from ``start_s`` on is worth, least is best: late for its deadline, what it goes by, time."""
        wait_s, run_s = start_s - self.now_s, entry.run_s(ranked) + entry.restart_s
        late = wait_s + run_s > entry.by_s
        if entry.in_order:
            return late, wait_s, run_s
        if entry.by_cost:
            return late, ranked.money(run_s) if self._is_patient(entry, start_s) else math.inf, wait_s + run_s
        return late, wait_s + run_s * (1.0 + price * ranked.gpus), wait_s

    def _is_patient(self, entry: Entry, start_s: float) -> bool:
        """Whether a start at ``start_s`` keeps its whole wait in bounds: a share of its longest plan's run time."""
        longest_s = max(map(entry.run_s, entry.others.plans))
        return start_s - entry.job.submitted_s <= self.policy.max_wait_share * longest_s

    def _pays(self, entry: Entry, best: RankedPlan, promise: Promise, price: float) -> bool:
        now, then = (self._key(entry, *each, price) for each in ((best, self.now_s), (promise.ranked, promise.start_s)))
        if now[0] != then[0]:
            return then[0] < now[0]
        return now[1] - then[1] > 0 and now[1] - then[1] >= self.policy.min_gain * now[1]

    def _timeline(self, ranked: RankedPlan) -> Timeline:
        gpu_type = ranked.gpu_type
        if gpu_type not in self._timelines:
            running = self.state.running
            ends = [(end_s, running[key]) for end_s, key in self.state.ends.get(gpu_type, ())]
            for job in self.started.values():
                if job.plan.gpu_type == gpu_type:
                    assert job.expected_end_s is not None
                    insort(ends, (job.expected_end_s, job), key=lambda end: (end[0], end[1].run_key))
            self._timelines[gpu_type] = Timeline(self.room.by_type[gpu_type], ends, self.now_s, self.state.policy)
        return self._timelines[gpu_type]
