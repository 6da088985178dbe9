"""Where no job is moved: the same sweep over the jobs that wait, each placed at its turn.

A job that finds no place is promised the one with which it ends soonest, if running jobs end as expected; so is a
job that had better wait than start what it could (``min_gain``, within ``max_wait_share``). There is one promise for
each GPU type, that of the first job which waits for it. Jobs behind it may use what it leaves, or what they give back
by then.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field
from typing import Final

from frenzy.core.scheduling.engine.choices import Capacity, Choice, Tables
from frenzy.core.scheduling.engine.claims import Claim, claim_of_waiting
from frenzy.core.scheduling.engine.fair_share import held_by_queue
from frenzy.core.scheduling.engine.line import Line, claims_of
from frenzy.core.scheduling.engine.placement import place
from frenzy.core.scheduling.engine.policy_settings import BackfillPolicy, FifoPolicy, HasPolicy
from frenzy.core.scheduling.engine.quotas import QuotaUse
from frenzy.core.scheduling.engine.reservation import Promise, Timeline
from frenzy.core.scheduling.engine.room import FreeCapacity, Need, minus
from frenzy.core.scheduling.engine.shares import serve
from frenzy.core.scheduling.engine.state import SchedulingState, restarted
from frenzy.core.scheduling.engine.sweep import Kept, Missed, Sweep
from frenzy.core.values.cluster import Placement
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob, Start

Key = tuple[bool, float, float]

# Of a queue in plain order: each job takes the first of its plans that fits.
PLAIN: Final = BackfillPolicy(urgency=0.0)


def decide(state: SchedulingState, now_s: float) -> tuple[tuple[Start, ...], SchedulingState, StartSweep]:
    """Starts; the state once they are done; and the last sweep, which starts nothing: the record of all that wait."""
    starts: list[Start] = []
    while (found := sweep(state, now_s)).started:
        jobs = found.started.values()
        starts += [Start(run_key=job.run_key, plan=job.plan, placement=job.placement) for job in jobs]
        state = state.start(jobs)
    return tuple(starts), state, found


def service_order(state: SchedulingState, now_s: float) -> tuple[str, ...]:
    """Run keys of all that wait, in the order in which a sweep serves them; with shares, as if in one queue."""
    rules = state.rules.policy
    policy = rules if isinstance(rules, BackfillPolicy) else PLAIN
    return tuple(each.run_key for each in _line(state, now_s, policy, Capacity.of(state.cluster)).claims)


def sweep(state: SchedulingState, now_s: float) -> StartSweep:
    """One sweep over the jobs that wait."""
    rules, capacity = state.rules.policy, Capacity.of(state.cluster)
    policy = rules if isinstance(rules, BackfillPolicy) else PLAIN
    idle = {gpu_type: room.idle_gpus for gpu_type, room in state.room.by_type.items()}
    running = state.running.values()
    found = StartSweep(
        policy=policy,
        disturbance_s=0.0,
        forbidden=frozenset(),
        left=idle,
        idle=dict(idle),
        effective=capacity.effective,
        quotas=QuotaUse.of(policy, running) if policy.queues else None,
        fits_empty=state.fits_empty,
        state=state,
        now_s=now_s,
        room=state.room,
    )
    serve(found, _line(state, now_s, policy, capacity), held_by_queue(running, capacity), capacity)
    return found


def _line(state: SchedulingState, now_s: float, policy: BackfillPolicy, capacity: Capacity) -> Line:
    if isinstance(state.rules.policy, BackfillPolicy):
        return Line.of(claims_of(state, now_s, policy, capacity, moves=False), now_s)
    tables = Tables(state.rules, capacity)
    waiting = (each for each in state.waiting if each.job.run_key not in state.running)
    return Line.of([claim_of_waiting(each, tables, policy)._replace(in_order=True) for each in waiting], now_s)


@dataclass(slots=True, kw_only=True)
class StartSweep(Sweep):
    """A sweep in which nobody moves.

    started: by run key. promises: those that are kept, by GPU type. own_promises: all, by run key. head: who blocks
    all behind it, under a policy where one does. _behind_s: by GPU type the end of the last that is to start there.
    _nowhere: what found no place among all that is idle (False) or among what a promise leaves (True).
    """

    state: SchedulingState
    now_s: float
    room: FreeCapacity
    started: dict[str, RunningJob] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    own_promises: dict[str, Promise] = field(default_factory=dict)
    head: Claim | None = None
    _behind_s: dict[str, float] = field(default_factory=dict)
    _timelines: dict[str, Timeline] = field(default_factory=dict)
    _nowhere: set[tuple[bool, Need]] = field(default_factory=set)

    def keeps_before_borrowing(self) -> bool:
        return not isinstance(self.state.rules.policy, HasPolicy)

    def has_place(self, claim: Claim, choice: Choice) -> bool:
        """Whether ``choice`` can start now without breaking a promise."""
        return self._place(claim, choice) is not None

    def _keep(self, claim: Claim, choice: Choice, sign: int) -> None:
        """Start ``choice``, or take the start of it back."""
        Sweep._keep(self, claim, choice, sign)
        promise = self.promises.get(choice.gpu_type)
        lasts = promise is not None and not promise.begins_after(self._end_s(claim, choice))
        if sign > 0:
            placement = self._place(claim, choice)
            assert placement is not None, "only what has a place is taken"
            assert isinstance(claim.job, QueuedJob)
            self.started[claim.run_key] = restarted(claim.job, choice.plan, placement, now_s=self.now_s)
            self.room = self.room.hold(choice.need, placement)
        else:
            placement = self.started.pop(claim.run_key).placement
            self.room = self.room.release(choice.need, placement)
            self._nowhere.clear()
        self._timelines.pop(choice.gpu_type, None)
        if promise is not None and lasts:
            promise.narrow(choice.need, placement, sign)

    def _end_s(self, claim: Claim, choice: Choice) -> float:
        return self.now_s + claim.restart_s + claim.run_s(choice)

    def _place(self, claim: Claim, choice: Choice) -> Placement | None:
        need, promise, room = choice.need, self.promises.get(choice.gpu_type), self.room.by_type[choice.gpu_type]
        within = promise is not None and not promise.begins_after(self._end_s(claim, choice))
        if need.num_gpus > room.idle_gpus or (within, need) in self._nowhere:
            return None
        if promise is not None and within:
            room = promise.spare(room)
        placement = place(room, need)
        if placement is None:
            self._nowhere.add((within, need))
        return placement

    def record(self) -> Missed:
        """What is left now, less what is kept for those that are promised it."""
        if self.head is not None:
            idle = {gpu_type: room.idle_gpus for gpu_type, room in self.room.by_type.items()}
            return Missed(dict.fromkeys(idle, 0), {name: Kept(self.head, num_gpus) for name, num_gpus in idle.items()})
        left, kept = dict(self.left), dict[str, Kept]()
        for gpu_type, promise in self.promises.items():
            room = self.room.by_type[gpu_type]
            left[gpu_type] = promise.spare(room).idle_gpus
            kept[gpu_type] = Kept(promise.claim, room.idle_gpus - left[gpu_type], promise.start_s)
        return Missed(left, kept)

    def is_over(self, claim: Claim) -> bool:
        """A job that is promised something waits for it; a plain queue's first job that waits blocks all behind it."""
        return self.head is not None or claim.run_key in self.own_promises

    def keep_for(self, claim: Claim, _line: Line, price: float) -> None:
        """Promise a place to ``claim``, which found none, or let it block all behind it."""
        rules = self.state.rules.policy
        if isinstance(rules, FifoPolicy) and rules.head_blocks:
            if self.head is None and self._possible_of(claim.others):
                self.head, self._turn = claim, None
        elif all(gpu_type in self.promises for gpu_type, _ in claim.others.fewest_gpus):
            return
        elif isinstance(rules, BackfillPolicy) and not self.is_over(claim):
            found = self._best(claim, price, None)
            if found is not None:
                self._promised(found)

    def waits_for_better(self, claim: Claim, best: Choice, price: float) -> bool:
        """Whether ``claim`` had better wait than start ``best`` now; then it is promised what it waits for.

        The ladder's order is not one of speed: such a job takes what it can get.
        """
        if claim.in_order:
            return False
        found = self._best(claim, price, best)
        if found is None or not self._is_patient(claim, found.start_s) or not self._pays(claim, best, found, price):
            return False
        self._promised(found)
        return True

    def _promised(self, promise: Promise) -> None:
        gpu_type = promise.choice.gpu_type
        self.own_promises[promise.claim.run_key] = promise
        self._behind_s[gpu_type] = promise.end_s
        if promise.is_kept:
            self.promises[gpu_type] = promise
            self._nowhere = {each for each in self._nowhere if each[1].gpu_type != gpu_type or not each[0]}
            self._turn = None

    def _best(self, claim: Claim, price: float, instead_of: Choice | None) -> Promise | None:
        """The promise with which ``claim`` fares best; better than to start ``instead_of``.

        Of types that have a promise only where it could start otherwise: it then waits its turn behind the others.
        """
        soonest = [
            (self._key(claim, each, self._soonest_s(each), price), each)
            for each in self._possible_of(claim.others)
            if (instead_of is not None or each.gpu_type not in self.promises)
            and each is not instead_of
            and self.may_have(claim, each)
        ]
        bound = None if instead_of is None else self._key(claim, instead_of, self.now_s, price)
        best: tuple[Key, Promise] | None = None
        for least, choice in sorted(soonest, key=lambda each: each[0]):
            if (best is not None and least >= best[0]) or (bound is not None and least >= bound):
                break
            found = self._promise(claim, choice, instead_of)
            if found is None:
                continue
            key = self._key(claim, choice, found.start_s, price)
            if best is None or key < best[0]:
                best = (key, found)
        return best[1] if best is not None else None

    def _soonest_s(self, choice: Choice) -> float:
        """A time before which ``choice`` cannot start."""
        return max(self._behind_s.get(choice.gpu_type, self.now_s), self._timeline(choice).soonest(choice.num_gpus))

    def _promise(self, claim: Claim, choice: Choice, instead_of: Choice | None) -> Promise | None:
        if choice.gpu_type in self.promises:
            return Promise(
                claim=claim,
                choice=choice,
                start_s=self._soonest_s(choice),
                after=(),
                instead_of=instead_of,
                at_start={},
                is_kept=False,
            )
        found = self._timeline(choice).earliest(choice.need)
        if found is None:
            return None
        start_s, after, room, placement = found
        nodes = placement.allocations
        at_start = {each.node: minus(room.free[each.node], choice.need.on_node(each.num_gpus)) for each in nodes}
        return Promise(
            claim=claim, choice=choice, start_s=start_s, after=after, instead_of=instead_of, at_start=at_start
        )

    def _key(self, claim: Claim, choice: Choice, start_s: float, price: float) -> Key:
        """What ``choice`` from ``start_s`` on is worth to ``claim``, the least the best: late for its deadline, what it
        goes by, the time to its end.
        """
        wait_s, run_s = start_s - self.now_s, claim.run_s(choice)
        late = wait_s + run_s > claim.by_s
        if claim.in_order:
            return late, wait_s, run_s
        if claim.by_cost:
            return late, choice.money(run_s) if self._is_patient(claim, start_s) else math.inf, wait_s + run_s
        return late, wait_s + run_s * (1.0 + price * choice.gpus), wait_s

    def _is_patient(self, claim: Claim, start_s: float) -> bool:
        """Whether a start at ``start_s`` keeps its whole wait in bounds: a share of its longest plan's run time."""
        longest_s = max(map(claim.run_s, claim.others.choices))
        return start_s - claim.job.submitted_s <= self.policy.max_wait_share * longest_s

    def _pays(self, claim: Claim, best: Choice, promise: Promise, price: float) -> bool:
        now, then = (self._key(claim, *each, price) for each in ((best, self.now_s), (promise.choice, promise.start_s)))
        if now[0] != then[0]:
            return then[0] < now[0]
        return now[1] - then[1] > 0 and now[1] - then[1] >= self.policy.min_gain * now[1]

    def _timeline(self, choice: Choice) -> Timeline:
        gpu_type = choice.gpu_type
        if gpu_type not in self._timelines:
            running = self.state.running
            ends = [(end_s, running[key]) for end_s, key in self.state.ends.get(gpu_type, ())]
            for job in self.started.values():
                if job.plan.gpu_type == gpu_type:
                    assert job.expected_end_s is not None
                    insort(ends, (job.expected_end_s, job), key=lambda end: (end[0], end[1].run_key))
            self._timelines[gpu_type] = Timeline(self.room.by_type[gpu_type], ends, self.now_s, self.state.rules)
        return self._timelines[gpu_type]
