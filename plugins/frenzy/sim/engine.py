"""The event loop: jobs arrive, end, run out of memory, nodes fail; a scheduler decides what follows.

Deterministic: the same scenario and the same scheduler give the same result, but for the CPU time of
decisions. What the scheduler sees is a ``SchedulingState``, kept by the same operations as in the
product; what is true of a job (its work, its need of memory) only the engine knows.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import Final

from frenzy.core.capacity.cluster_capacity import Capacity
from frenzy.core.capacity.free_capacity import FreeCapacity
from frenzy.core.scheduling import HasPolicy, SchedulingState
from frenzy.core.values.cluster import NodeState, Placement
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import (
    Action,
    Elasticity,
    Hold,
    Preempt,
    QueuedJob,
    Resize,
    RunningJob,
    SchedulingFacts,
    Start,
)
from frenzy.sim.results import SimResult
from frenzy.sim.scenario_jobs import Scenario
from frenzy.sim.schedulers import Scheduler
from frenzy.sim.simulated_ledger import Ledger, LiveJob

# Later than a job's first step by more than the clock of a snapshot can tell apart.
_MOMENT_S: Final = 1e-3
# The product reconciles once a minute.
_LEAST_LOOK_S: Final = 60.0


class SimulationError(RuntimeError):
    """A scheduler asked for what cannot be: GPUs that are not there, a job that does not wait."""


class _Kind(IntEnum):
    """Events at the same time happen in this order."""

    END = 0
    OUT_OF_MEMORY = 1
    NODE_LOST = 2
    NODE_BACK = 3
    ARRIVAL = 4
    MOVABLE = 5
    ROUND = 6


_OF_AN_ATTEMPT: Final = (_Kind.END, _Kind.OUT_OF_MEMORY, _Kind.MOVABLE)


def simulate(scenario: Scenario, scheduler: Scheduler, *, progress: Callable[[int], None] | None = None) -> SimResult:
    """Run ``scenario`` under ``scheduler`` until no job can do anything more.

    progress: told the number of jobs that have ended, after each event. Raises SimulationError.
    """
    return _Engine(scenario, scheduler, progress or (lambda _: None)).run()


class _Engine:
    def __init__(self, scenario: Scenario, scheduler: Scheduler, progress: Callable[[int], None]) -> None:
        self._scenario, self._scheduler, self._progress = scenario, scheduler, progress
        self._cluster = scenario.cluster
        self._running = {each.job.run_key: each.job for each in scenario.running}
        self._policy = scheduler.rules
        self._room = self._whole_room()
        self._moves = scheduler.round_s is None and isinstance(scheduler.rules, HasPolicy)
        self._ledger = Ledger(scenario)
        if len(self._ledger.jobs) != len(scenario.jobs) + len(scenario.running):
            raise SimulationError("two jobs have the same key")
        self._waiting: dict[str, QueuedJob] = {}
        self._events: list[tuple[float, int, int, str, int]] = []
        self._failures_of_node: Counter[str] = Counter()
        self._decision_s: list[float] = []
        self._order = 0
        self._num_arrived = len(self._running)
        self._round_pending = False

    def run(self) -> SimResult:
        self._push_what_is_known()
        while self._drop_void_looks():
            now_s = self._events[0][0]
            self._ledger.passes(now_s, {name: each.idle_gpus for name, each in self._room.by_type.items()})
            must_decide = False
            while self._events and self._events[0][0] == now_s:
                _, kind, _, key, attempt = heapq.heappop(self._events)
                must_decide = self._happen(now_s, _Kind(kind), key, attempt) or must_decide
            if must_decide:
                self._decide(now_s)
            self._ledger.queue_is(len(self._waiting), now_s)
            self._progress(self._ledger.num_ended)
        return self._ledger.result(self._scheduler.name, self._decision_s, self._scenario.cluster)

    def _drop_void_looks(self) -> bool:
        """Whether anything is still to happen. A look at a job that has left its GPUs is nothing, and takes no time."""
        while self._events:
            _, kind, _, key, attempt = self._events[0]
            if kind != _Kind.MOVABLE or self._ledger.jobs[key].attempt == attempt:
                return True
            heapq.heappop(self._events)
        return False

    # events

    def _push_what_is_known(self) -> None:
        start_s = self._scenario.start_s
        for running in self._scenario.running:
            since_s = running.job.started_s if running.job.ready_s is None else running.job.ready_s
            end_s = since_s + running.work * running.job.plan.predicted_run_s
            self._push(max(start_s, end_s), _Kind.END, running.job.run_key)
            self._push_movable(running.job.run_key, running.job.elasticity, since_s)
        for sim in self._scenario.jobs:
            self._push(max(start_s, sim.job.submitted_s), _Kind.ARRIVAL, sim.job.run_key)
        for failure in self._scenario.failures:
            self._push(failure.at_s, _Kind.NODE_LOST, failure.node)
            self._push(failure.at_s + failure.repair_s, _Kind.NODE_BACK, failure.node)
        if self._scenario.running:
            self._round_pending = True
            self._push(start_s, _Kind.ROUND)

    def _push(self, at_s: float, kind: _Kind, key: str = "", attempt: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, int(kind), self._order, key, attempt))

    def _happen(self, now_s: float, kind: _Kind, key: str, attempt: int) -> bool:
        """Let one event happen; whether the scheduler must decide now."""
        if kind in _OF_AN_ATTEMPT and self._ledger.jobs[key].attempt != attempt:
            return False
        if kind is _Kind.MOVABLE:
            self._push_next_look(self._running[key], now_s, attempt)
            return True
        if kind is _Kind.ROUND:
            self._round_pending = False
            return True
        if kind is _Kind.END:
            self._end(key, now_s)
        elif kind is _Kind.OUT_OF_MEMORY:
            self._out_of_memory(key, now_s)
        elif kind is _Kind.ARRIVAL:
            job = self._ledger.jobs[key].sim.job
            self._num_arrived += 1
            self._queue(job, job.submitted_s)
        elif kind is _Kind.NODE_LOST:
            self._lose_node(key, now_s)
        else:
            self._bring_back_node(key)
        return self._scheduler.round_s is None or self._ask_for_round(now_s)

    def _ask_for_round(self, now_s: float) -> bool:
        """Whether a round is due right now; otherwise the next one is on its way."""
        round_s = self._scheduler.round_s
        if round_s is not None and not self._round_pending:
            self._round_pending = True
            self._push(math.ceil(now_s / round_s) * round_s, _Kind.ROUND)
        return False

    def _end(self, key: str, now_s: float) -> None:
        self._ledger.leaves(self._running[key], now_s)
        self._ledger.ends(key, now_s)
        self._release(key)

    def _out_of_memory(self, key: str, now_s: float) -> None:
        """What is known of its memory now excludes every plan that would run short as well."""
        live = self._ledger.jobs[key]
        live.num_ooms += 1
        job = self._running[key]
        given_up = (job.plan.gpu_type, job.plan.num_gpus)
        waiting = self._thrown_back(job, now_s)
        plans = tuple(plan for plan in waiting.plans if not live.sim.runs_out_of_memory(plan))
        memory_constrained = bool(plans) and all((plan.gpu_type, plan.num_gpus) != given_up for plan in plans)
        self._back_to_queue(replace(waiting, plans=plans, memory_constrained=memory_constrained), now_s)

    def _lose_node(self, node: str, now_s: float) -> None:
        self._failures_of_node[node] += 1
        for job in [each for each in self._running.values() if _is_on(each.placement, node)]:
            self._back_to_queue(self._thrown_back(job, now_s), now_s)
        self._set_node(node, NodeState.LOST)

    def _bring_back_node(self, node: str) -> None:
        self._failures_of_node[node] -= 1
        if not self._failures_of_node[node]:
            before = self._scenario.cluster.nodes_by_name[node].state
            self._set_node(node, before)

    def _set_node(self, node: str, node_state: NodeState) -> None:
        self._cluster = self._cluster.with_node_state(node, node_state)
        self._room = self._whole_room()

    def _whole_room(self) -> FreeCapacity:
        held = ((self._policy.need(job.plan), job.placement) for job in self._running.values())
        return Capacity.of(self._cluster).left_by(held)

    def _release(self, key: str) -> None:
        """The running job ``key`` holds no GPUs any more."""
        job = self._running.pop(key)
        self._room = self._room.release(self._policy.need(job.plan), job.placement)

    def _thrown_back(self, job: RunningJob, now_s: float) -> QueuedJob:
        """``job``, which loses its GPUs and what it did since its last checkpoint, as it waits again."""
        done = job.progress(now_s)
        checkpoint = self._scenario.checkpoint_s / job.plan.predicted_run_s
        lost = math.fmod(done, checkpoint)
        self._ledger.leaves(job, now_s, lost=lost)
        return job.as_waiting(done - lost)

    # decisions

    def _decide(self, now_s: float) -> None:
        began = time.thread_time()
        facts = SchedulingFacts(
            cluster=self._cluster, queued=tuple(self._waiting.values()), running=tuple(self._running.values())
        )
        actions = self._scheduler.decide(SchedulingState.of(facts, self._scheduler.rules), now_s)
        self._decision_s.append(time.thread_time() - began)
        self._apply([each for each in actions if not isinstance(each, Hold)], now_s)
        active = self._ledger.num_ended < self._num_arrived
        if self._scheduler.round_s is not None and active and (self._running or self._events):
            self._next_round(now_s)

    def _next_round(self, now_s: float) -> None:
        if not self._round_pending and self._scheduler.round_s is not None:
            self._round_pending = True
            self._push(now_s + self._scheduler.round_s, _Kind.ROUND)

    def _apply(self, actions: list[Action], now_s: float) -> None:
        """All at once: what is stopped or moved gives its GPUs back before any is taken."""
        entering: list[tuple[QueuedJob, Start | Resize]] = []
        for action in actions:
            if isinstance(action, Preempt):
                self._back_to_queue(self._stopped(action.run_key, now_s), now_s)
            elif isinstance(action, Resize):
                entering.append((self._stopped(action.run_key, now_s), action))
                self._release(action.run_key)
        for action in actions:
            if isinstance(action, Start):
                if action.run_key not in self._waiting:
                    raise SimulationError(f"{action.run_key} does not wait")
                entering.append((self._waiting.pop(action.run_key), action))
        if entering:
            started = [self._enter(job, action.plan, action.placement, now_s) for job, action in entering]
            for job in started:
                self._running[job.run_key] = job
                self._room = self._room.hold(self._policy.need(job.plan), job.placement)
            for job in started:
                self._check_room(job)

    def _stopped(self, key: str, now_s: float) -> QueuedJob:
        """The running job ``key``, stopped at a checkpoint, with one move fewer left."""
        if key not in self._running:
            raise SimulationError(f"{key} does not run")
        job = self._running[key]
        self._ledger.leaves(job, now_s)
        return job.stopped(now_s)

    def _enter(self, job: QueuedJob, plan: ResourcePlan, placement: Placement, now_s: float) -> RunningJob:
        """``job`` takes its GPUs. Every start takes what a first one does; a later one its restart time, if longer."""
        again = self._ledger.jobs[job.run_key].first_start_s is not None or job.work_done > 0
        live = self._ledger.starts(job, now_s)
        own_s = job.elasticity.restart_s if again and job.elasticity else 0.0
        restart_s = max(own_s, self._scenario.start_overhead_s)
        self._push_end(live, plan, now_s + restart_s)
        self._push_movable(job.run_key, job.elasticity, now_s + restart_s, live.attempt)
        # A job that is never moved is started again with any of its plans after a failure.
        return replace(job.started(plan, placement, now_s=now_s, restart_s=restart_s), plans=job.plans)

    def _push_end(self, live: LiveJob, plan: ResourcePlan, ready_s: float) -> None:
        key = live.sim.job.run_key
        if live.sim.runs_out_of_memory(plan):
            self._push(ready_s + self._scenario.oom_after_s, _Kind.OUT_OF_MEMORY, key, live.attempt)
        else:
            end_s = ready_s + max(0.0, live.sim.work - live.done) * plan.predicted_run_s
            self._push(end_s, _Kind.END, key, live.attempt)

    def _push_movable(self, key: str, elasticity: Elasticity | None, ready_s: float, attempt: int = 0) -> None:
        """As in the product, where a pass runs when a job may be moved for the first time since it moved."""
        if self._moves and elasticity is not None:
            movable_s, start_s = ready_s + max(elasticity.min_run_s, _MOMENT_S), self._scenario.start_s
            if movable_s <= start_s:  # the first look of all is at the start: the next as after any look
                movable_s = start_s + max(_LEAST_LOOK_S, start_s - ready_s)
            # Rounded up, so that it has surely run so long.
            self._push(math.nextafter(movable_s, math.inf), _Kind.MOVABLE, key, attempt)

    def _push_next_look(self, job: RunningJob, now_s: float, attempt: int) -> None:
        """In the product a pass runs every minute; here when a job has run twice as long as at the look before.

        What a move is worth to a job that is left alone changes with how long it has been.
        """
        self._push(now_s + max(_LEAST_LOOK_S, job.ran_s(now_s)), _Kind.MOVABLE, job.run_key, attempt)

    def _check_room(self, job: RunningJob) -> None:
        room = self._room
        for each in job.placement.allocations:
            gpu_type = room.type_of_node.get(each.node)
            if gpu_type is None or room.by_type[gpu_type].free[each.node].num_gpus < 0:
                raise SimulationError(f"{job.run_key} was put on GPUs of {each.node} that are not free")
        if job.placement.num_gpus != job.plan.num_gpus:
            raise SimulationError(f"{job.run_key} was given {job.placement.num_gpus} GPUs for {job.plan.plan_id}")

    def _back_to_queue(self, job: QueuedJob, now_s: float) -> None:
        self._release(job.run_key)
        self._queue(job, now_s)

    def _queue(self, job: QueuedJob, since_s: float) -> None:
        self._waiting[job.run_key] = job
        self._ledger.waits(job, since_s)


def _is_on(placement: Placement, node: str) -> bool:
    return any(each.node == node for each in placement.allocations)
