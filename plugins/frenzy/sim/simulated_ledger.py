"""What really happens to the jobs of a simulation, noted as it happens; no scheduler sees it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from frenzy.core.values.cluster import Cluster
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.core.values.scheduling_facts import QueuedJob, RunningJob
from frenzy.sim.results import IdleTime, JobOutcome, SimResult, Stay
from frenzy.sim.scenario_jobs import Scenario, SimJob


@dataclass(slots=True)
class LiveJob:
    """What is true of one job so far. attempt: counts stays; events of earlier ones are void.

    done: of ``sim.work``. waiting_since_s: None while it holds GPUs or has not arrived.
    """

    sim: SimJob
    done: float = 0.0
    attempt: int = 0
    first_start_s: float | None = None
    end_s: float | None = None
    waiting_since_s: float | None = None
    waiting_s: float = 0.0
    num_restarts: int = 0
    num_ooms: int = 0


class Ledger:
    """Jobs, stays, queue length and idle GPUs over the time of one simulation."""

    def __init__(self, scenario: Scenario) -> None:
        self.jobs = {sim.job.run_key: LiveJob(sim) for sim in scenario.jobs}
        for each in scenario.running:
            started_s = each.job.started_s
            waited_s = max(0.0, started_s - each.job.submitted_s)
            self.jobs[each.job.run_key] = LiveJob(each.as_submitted, first_start_s=started_s, waiting_s=waited_s)
        self.num_ended = 0
        self._scenario = scenario
        self._stays: list[Stay] = []
        self._queue: list[tuple[float, int]] = []
        self._idle = _Idle(scenario.start_s)
        self._wanted = _Wanted()

    def waits(self, job: QueuedJob, since_s: float) -> None:
        self.jobs[job.run_key].waiting_since_s = since_s
        self._wanted.add(job.plans)

    def starts(self, job: QueuedJob, now_s: float) -> LiveJob:
        """``job`` gets GPUs, moved there or from the queue."""
        live = self.jobs[job.run_key]
        if live.waiting_since_s is not None:
            live.waiting_s += now_s - live.waiting_since_s
            live.waiting_since_s = None
            self._wanted.remove(job.plans)
        live.num_restarts += live.first_start_s is not None
        live.first_start_s = now_s if live.first_start_s is None else live.first_start_s
        live.attempt += 1
        return live

    def leaves(self, job: RunningJob, now_s: float, *, lost: float = 0.0) -> LiveJob:
        """``job`` gives its GPUs back. lost: of its progress, as multiples of the predicted run time."""
        live = self.jobs[job.run_key]
        live.attempt += 1
        live.done += job.progress(now_s) - lost
        self._stays.append(
            Stay(
                run_key=job.run_key,
                gpu_type=job.plan.gpu_type,
                num_gpus=job.plan.num_gpus,
                start_s=job.started_s,
                busy_from_s=job.started_s if job.ready_s is None else job.ready_s,
                end_s=now_s,
                repeated_s=lost * job.plan.predicted_run_s,
            )
        )
        return live

    def ends(self, run_key: str, now_s: float) -> None:
        live = self.jobs[run_key]
        live.done, live.end_s = live.sim.work, now_s
        self.num_ended += 1

    def passes(self, now_s: float, idle_gpus: Mapping[str, int]) -> None:
        """Until now, ``idle_gpus`` were idle and nothing changed."""
        self._idle.passes(now_s, idle_gpus, self._wanted)

    def queue_is(self, num_waiting: int, now_s: float) -> None:
        if not self._queue or self._queue[-1][1] != num_waiting:
            self._queue.append((now_s, num_waiting))

    def result(self, policy: str, decision_s: Iterable[float], cluster: Cluster) -> SimResult:
        """All of it; what still waits has waited until the last event."""
        return SimResult(
            scenario=self._scenario.name,
            policy=policy,
            jobs=tuple(_outcome(live, self._idle.now_s) for live in self.jobs.values()),
            stays=tuple(self._stays),
            queue=tuple(self._queue),
            decision_s=tuple(decision_s),
            start_s=self._scenario.start_s,
            num_gpus=cluster.num_gpus_by_type,
            idle=IdleTime(gpu_s=self._idle.gpu_s, wanted_gpu_s=self._idle.wanted_gpu_s),
        )


@dataclass(slots=True)
class _Wanted:
    """For each GPU type, how many waiting jobs have that many GPUs as their smallest plan of the type."""

    by_type: dict[str, Counter[int]] = field(default_factory=dict)
    _fewest: dict[int, tuple[tuple[ResourcePlan, ...], dict[str, int]]] = field(default_factory=dict)

    def add(self, plans: tuple[ResourcePlan, ...]) -> None:
        for gpu_type, num_gpus in self._smallest(plans).items():
            self.by_type.setdefault(gpu_type, Counter())[num_gpus] += 1

    def remove(self, plans: tuple[ResourcePlan, ...]) -> None:
        for gpu_type, num_gpus in self._smallest(plans).items():
            counts = self.by_type[gpu_type]
            counts[num_gpus] -= 1
            if not counts[num_gpus]:
                del counts[num_gpus]

    def _smallest(self, plans: tuple[ResourcePlan, ...]) -> dict[str, int]:
        """Kept by identity, since jobs of a class share their plans; the plans are kept with it, hence alive."""
        known = self._fewest.get(id(plans))
        if known is None:
            fewest: dict[str, int] = {}
            for plan in plans:
                fewest[plan.gpu_type] = min(plan.num_gpus, fewest.get(plan.gpu_type, plan.num_gpus))
            known = self._fewest[id(plans)] = (plans, fewest)
        return known[1]


@dataclass(slots=True)
class _Idle:
    now_s: float
    gpu_s: float = 0.0
    wanted_gpu_s: float = 0.0

    def passes(self, now_s: float, idle_gpus: Mapping[str, int], wanted: _Wanted) -> None:
        since_s, self.now_s = now_s - self.now_s, now_s
        for gpu_type, num_gpus in idle_gpus.items():
            self.gpu_s += since_s * num_gpus
            if num_gpus and min(wanted.by_type.get(gpu_type, ()), default=math.inf) <= num_gpus:
                self.wanted_gpu_s += since_s * num_gpus


def _outcome(live: LiveJob, now_s: float) -> JobOutcome:
    job = live.sim.job
    still_s = 0.0 if live.waiting_since_s is None else now_s - live.waiting_since_s
    return JobOutcome(
        run_key=job.run_key,
        job_name=job.job_name,
        team=job.team,
        submitted_s=job.submitted_s,
        first_start_s=live.first_start_s,
        end_s=live.end_s,
        best_run_s=live.sim.work * min((plan.predicted_run_s for plan in job.plans), default=math.inf),
        waiting_s=live.waiting_s + still_s,
        num_restarts=live.num_restarts,
        num_ooms=live.num_ooms,
        queue=job.queue,
        deadline_s=job.deadline_s,
    )
