"""The event loop: jobs arrive, end, run out of memory, nodes fail; a scheduler decides what follows.

Deterministic: the same scenario and the same scheduler give the same result, but for the CPU time of
decisions. What the scheduler sees is a ``SchedulingState``, kept by the same operations as in the
product; what is true of a job (its work, its need of memory) only the engine knows.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from frenzy.core.cluster import Cluster, NodeState, Placement
from frenzy.core.has import SchedulingState
from frenzy.core.has.state import running_job
from frenzy.core.plan import ResourcePlan
from frenzy.core.queue import Action, Hold, Preempt, QueuedJob, Resize, RunningJob, SchedulingFacts, Start
from frenzy.sim.jobs import NodeFailure, Scenario, SimJob
from frenzy.sim.outcome import JobOutcome, SimResult, Stay
from frenzy.sim.schedulers import Scheduler


class SimulationError(RuntimeError):
    """A scheduler asked for what cannot be: GPUs that are not there, a job that does not wait."""


class _Kind(IntEnum):
    """Events at the same time happen in this order."""

    END = 0
    OUT_OF_MEMORY = 1
    NODE_LOST = 2
    NODE_BACK = 3
    ARRIVAL = 4
    ROUND = 5


@dataclass(slots=True)
class _Live:
    """What is true of one job so far. attempt: counts stays; events of earlier ones are void."""

    sim: SimJob
    done: float = 0.0
    attempt: int = 0
    first_start_s: float | None = None
    end_s: float | None = None
    waiting_since_s: float = 0.0
    waiting_s: float = 0.0
    num_restarts: int = 0
    num_ooms: int = 0


def simulate(scenario: Scenario, scheduler: Scheduler, *, progress: Callable[[int], None] | None = None) -> SimResult:
    """Run ``scenario`` under ``scheduler`` until no job can do anything more.

    progress: told the number of jobs that have ended, after each event. Raises SimulationError.
    """
    return _Engine(scenario, scheduler, progress or (lambda _: None)).run()


class _Engine:
    def __init__(self, scenario: Scenario, scheduler: Scheduler, progress: Callable[[int], None]) -> None:
        self._scenario, self._scheduler, self._progress = scenario, scheduler, progress
        empty = SchedulingFacts(cluster=scenario.cluster, queued=(), running=())
        self._state = SchedulingState.of(empty, scheduler.rules)
        self._live = {sim.job.run_key: _Live(sim) for sim in scenario.jobs}
        if len(self._live) != len(scenario.jobs):
            raise SimulationError("two jobs have the same key")
        self._events: list[tuple[float, int, int, str, int]] = []
        self._failures: dict[str, list[NodeFailure]] = {}
        self._stays: list[Stay] = []
        self._queue: list[tuple[float, int]] = []
        self._decision_s: list[float] = []
        self._upkeep_s = 0.0
        self._order = 0
        self._num_ended = 0
        self._num_arrived = 0
        self._round_pending = False

    def run(self) -> SimResult:
        for sim in self._scenario.jobs:
            self._push(sim.job.submitted_s, _Kind.ARRIVAL, sim.job.run_key)
        for failure in self._scenario.failures:
            self._push(failure.at_s, _Kind.NODE_LOST, failure.node)
            self._push(failure.at_s + failure.repair_s, _Kind.NODE_BACK, failure.node)
        while self._events:
            now_s = self._events[0][0]
            must_decide = False
            while self._events and self._events[0][0] == now_s:
                _, kind, _, key, attempt = heapq.heappop(self._events)
                must_decide = self._happen(now_s, _Kind(kind), key, attempt) or must_decide
            if must_decide:
                self._decide(now_s)
            self._note_queue(now_s)
            self._progress(self._num_ended)
        return self._result()

    # events

    def _push(self, at_s: float, kind: _Kind, key: str = "", attempt: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, int(kind), self._order, key, attempt))

    def _happen(self, now_s: float, kind: _Kind, key: str, attempt: int) -> bool:
        """Let one event happen; whether the scheduler must decide now."""
        if kind in (_Kind.END, _Kind.OUT_OF_MEMORY) and self._live[key].attempt != attempt:
            return False
        if kind is _Kind.ROUND:
            self._round_pending = False
            return True
        if kind is _Kind.END:
            self._end(key, now_s)
        elif kind is _Kind.OUT_OF_MEMORY:
            self._out_of_memory(key, now_s)
        elif kind is _Kind.ARRIVAL:
            self._arrive(key, now_s)
        else:
            self._change_node(key, NodeState.LOST if kind is _Kind.NODE_LOST else NodeState.READY, now_s)
        return self._scheduler.round_s is None or self._ask_for_round(now_s)

    def _ask_for_round(self, now_s: float) -> bool:
        """Whether a round is due right now; otherwise the next one is on its way."""
        round_s = self._scheduler.round_s
        if round_s is not None and not self._round_pending:
            self._round_pending = True
            self._push(math.ceil(now_s / round_s) * round_s, _Kind.ROUND)
        return False

    def _arrive(self, key: str, now_s: float) -> None:
        live = self._live[key]
        live.waiting_since_s = now_s
        self._num_arrived += 1
        self._timed(lambda: self._state.submit(live.sim.job))

    def _end(self, key: str, now_s: float) -> None:
        live = self._live[key]
        self._leave(key, now_s)
        live.done, live.end_s = live.sim.work, now_s
        self._num_ended += 1
        self._timed(lambda: self._state.finish(key))

    def _out_of_memory(self, key: str, now_s: float) -> None:
        """What is known of its memory now excludes every plan that would run short as well."""
        live, job = self._live[key], self._state.running[key]
        live.num_ooms += 1
        self._leave(key, now_s)
        plans = tuple(plan for plan in job.plans or live.sim.job.plans if not live.sim.runs_out_of_memory(plan))
        self._back_to_queue(live, replace(self._waiting(job, now_s), plans=plans), now_s)

    def _change_node(self, node: str, node_state: NodeState, now_s: float) -> None:
        if node_state is NodeState.LOST:
            for job in [each for each in self._state.running.values() if _is_on(each.placement, node)]:
                live = self._live[job.run_key]
                lost = min(job.progress(now_s), self._since_checkpoint(job, now_s))
                self._leave(job.run_key, now_s)
                live.done -= lost
                waiting = self._waiting(job, now_s)
                behind = replace(waiting, work_left=waiting.work_left + lost, work_done=waiting.work_done - lost)
                self._back_to_queue(live, behind, now_s)
        cluster = _with_node_state(self._state.cluster, node, node_state)
        self._timed(lambda: self._state.with_cluster(cluster))

    def _since_checkpoint(self, job: RunningJob, now_s: float) -> float:
        ran_s = job.progress(now_s) * job.plan.predicted_run_s
        return math.fmod(ran_s, self._scenario.checkpoint_s) / job.plan.predicted_run_s

    # decisions

    def _decide(self, now_s: float) -> None:
        began = time.thread_time()
        actions = self._scheduler.decide(self._state, now_s)
        self._decision_s.append(time.thread_time() - began + self._upkeep_s)
        self._upkeep_s = 0.0
        self._apply([each for each in actions if not isinstance(each, Hold)], now_s)
        active = self._num_ended < self._num_arrived
        if self._scheduler.round_s is not None and active and (self._state.running or self._events):
            self._next_round(now_s)

    def _next_round(self, now_s: float) -> None:
        if not self._round_pending and self._scheduler.round_s is not None:
            self._round_pending = True
            self._push(now_s + self._scheduler.round_s, _Kind.ROUND)

    def _apply(self, actions: list[Action], now_s: float) -> None:
        """All at once: what is stopped or moved gives its GPUs back before any is taken."""
        moved: list[tuple[RunningJob, QueuedJob, Resize]] = []
        for action in actions:
            if isinstance(action, Preempt | Resize):
                job = self._running(action.run_key)
                waiting = _moved(self._waiting(job, now_s))
                self._leave(job.run_key, now_s)
                if isinstance(action, Preempt):
                    self._back_to_queue(self._live[job.run_key], waiting, now_s)
                else:
                    moved.append((job, waiting, action))
                    self._timed(lambda key=job.run_key: self._state.finish(key))
        for _, waiting, resize in moved:
            self._enter(waiting, resize.plan, resize.placement, now_s)
        waiting_by_key = {each.job.run_key: each.job for each in self._state.waiting}
        for action in actions:
            if isinstance(action, Start):
                if action.run_key not in waiting_by_key:
                    raise SimulationError(f"{action.run_key} does not wait")
                live = self._live[action.run_key]
                live.waiting_s += now_s - live.waiting_since_s
                self._enter(waiting_by_key[action.run_key], action.plan, action.placement, now_s)

    def _running(self, key: str) -> RunningJob:
        if key not in self._state.running:
            raise SimulationError(f"{key} does not run")
        return self._state.running[key]

    def _enter(self, job: QueuedJob, plan: ResourcePlan, placement: Placement, now_s: float) -> None:
        """``job`` takes its GPUs. Its first start costs nothing; later ones take its restart time."""
        live = self._live[job.run_key]
        again = live.first_start_s is not None
        if not again:
            live.first_start_s = now_s
        live.num_restarts += again
        live.attempt += 1
        restart_s = job.elasticity.restart_s if again and job.elasticity else 0.0
        ready_s = now_s + restart_s
        started = running_job(job, plan, placement, now_s=now_s)
        expected_end_s = ready_s + job.work_left * plan.predicted_run_s
        started = replace(started, ready_s=ready_s, expected_end_s=expected_end_s, plans=job.plans)
        self._timed(lambda: self._state.start([started]))
        self._check_room(started)
        if live.sim.runs_out_of_memory(plan):
            self._push(ready_s + self._scenario.oom_after_s, _Kind.OUT_OF_MEMORY, job.run_key, live.attempt)
        else:
            end_s = ready_s + (live.sim.work - live.done) * plan.predicted_run_s
            self._push(end_s, _Kind.END, job.run_key, live.attempt)

    def _check_room(self, job: RunningJob) -> None:
        for each in job.placement.allocations:
            gpu_type = self._state.room.type_of_node.get(each.node)
            if gpu_type is None or self._state.room.by_type[gpu_type].free[each.node].num_gpus < 0:
                raise SimulationError(f"{job.run_key} was put on GPUs of {each.node} that are not free")
        if job.placement.num_gpus != job.plan.num_gpus:
            raise SimulationError(f"{job.run_key} was given {job.placement.num_gpus} GPUs for {job.plan.plan_id}")

    def _leave(self, key: str, now_s: float) -> None:
        """Account for the stay that ends now."""
        job, live = self._state.running[key], self._live[key]
        live.attempt += 1
        live.done += job.progress(now_s)
        ready_s = job.started_s if job.ready_s is None else job.ready_s
        self._stays.append(
            Stay(
                run_key=key,
                gpu_type=job.plan.gpu_type,
                num_gpus=job.plan.num_gpus,
                start_s=job.started_s,
                busy_from_s=ready_s,
                end_s=now_s,
            )
        )

    def _waiting(self, job: RunningJob, now_s: float) -> QueuedJob:
        """``job`` as it will wait: what it has done is done."""
        done = job.progress(now_s)
        original = self._live[job.run_key].sim.job
        return replace(
            original,
            plans=job.plans or original.plans,
            work_left=max(0.0, job.work_left - done),
            work_done=job.work_done + done,
            elasticity=job.elasticity,
        )

    def _back_to_queue(self, live: _Live, job: QueuedJob, now_s: float) -> None:
        live.waiting_since_s = now_s
        self._timed(lambda: self._state.requeue(job))

    def _timed(self, change: Callable[[], SchedulingState]) -> None:
        began = time.thread_time()
        self._state = change()
        self._upkeep_s += time.thread_time() - began

    # results

    def _note_queue(self, now_s: float) -> None:
        waiting = len(self._state.waiting)
        if not self._queue or self._queue[-1][1] != waiting:
            self._queue.append((now_s, waiting))

    def _result(self) -> SimResult:
        return SimResult(
            scenario=self._scenario.name,
            policy=self._scheduler.name,
            jobs=tuple(_outcome(live) for live in self._live.values()),
            stays=tuple(self._stays),
            queue=tuple(self._queue),
            decision_s=tuple(self._decision_s),
        )


def _moved(job: QueuedJob) -> QueuedJob:
    """``job`` with one move fewer left."""
    if job.elasticity is None:
        return job
    return replace(job, elasticity=replace(job.elasticity, moves_left=job.elasticity.moves_left - 1))


def _is_on(placement: Placement, node: str) -> bool:
    return any(each.node == node for each in placement.allocations)


def _with_node_state(cluster: Cluster, name: str, node_state: NodeState) -> Cluster:
    nodes = (replace(node, state=node_state) if node.name == name else node for node in cluster.nodes)
    return Cluster(cluster.gpu_types, tuple(nodes))


def _outcome(live: _Live) -> JobOutcome:
    job = live.sim.job
    return JobOutcome(
        run_key=job.run_key,
        job_name=job.job_name,
        team=job.team,
        submitted_s=job.submitted_s,
        first_start_s=live.first_start_s,
        end_s=live.end_s,
        best_run_s=live.sim.work * min((plan.predicted_run_s for plan in job.plans), default=math.inf),
        waiting_s=live.waiting_s,
        num_restarts=live.num_restarts,
        num_ooms=live.num_ooms,
    )
