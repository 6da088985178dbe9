"""From a trace to a scenario: LLM jobs generated on real arrivals, the same for the same seed.

*Size.* Where the trace has a duration, a job is worth duration x GPUs asked for, in GPU-seconds.
Where it has none, it is worth as many GPU-hours as jobs of its size in Pollux (OSDI 2021): small up to
1, medium 1-10, large 10-100, xlarge 100-1000, drawn log-uniformly (small from 0.1 on). The size is
that of the application in the workloads of Pollux and Sia (``SIZE_OF_APPLICATION``); for an
application not known there it is drawn with Pollux's shares.

*Work.* GPU-seconds are those of the cluster's middle GPU type (by peak rate; for a class without plan
there the nearest type that has one), on the plan whose count is the largest not above what was asked
for. So a job that asked for what suits it takes as long there as in the trace.

*Class.* Drawn among the classes of the size (``job_classes``) that have a plan on the cluster, and on
the GPU types the trace limits the job to, if any is in the cluster.

*Asked GPUs.* What the trace says, lowered to a count the job has a plan with.

Each kind of draw has its own stream of random numbers, with one draw for each job: wrong estimates,
memory mispredictions and failures leave the true workload as it is. Streams differ between traces.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from frenzy.core.lifecycle.moves import MOVES
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import Precision
from frenzy.core.values.queue_rules import NO_RULES, QueueRules
from frenzy.core.values.scheduling_facts import Elasticity, QueuedJob
from frenzy.sim.clusters import OPENB_TYPES, cluster_label, cluster_named
from frenzy.sim.disturbances import Disturbances, Disturber, node_failures
from frenzy.sim.job_classes import CLASSES, JobSize, precision_for
from frenzy.sim.plan_sets import Hardware, plans_on
from frenzy.sim.profile_jobs import profile_jobs
from frenzy.sim.reference import Plans, asked_gpus, by_speed, reference_gpu_s
from frenzy.sim.scenario_jobs import Scenario, SimJob
from frenzy.sim.traces import TRACES, Arrival, Trace, load_trace, stem

SIZE_OF_APPLICATION: Final[Mapping[str, JobSize]] = {
    "cifar10": JobSize.SMALL,
    "ncf": JobSize.SMALL,
    "bert": JobSize.MEDIUM,
    "deepspeech2": JobSize.MEDIUM,
    "yolov3": JobSize.LARGE,
    "imagenet": JobSize.XLARGE,
}
# Upper limits in GPU-hours, and the least for small jobs.
_GPU_HOURS: Final = {
    JobSize.SMALL: (0.1, 1.0),
    JobSize.MEDIUM: (1.0, 10.0),
    JobSize.LARGE: (10.0, 100.0),
    JobSize.XLARGE: (100.0, 1000.0),
}
_SHARES: Final = {JobSize.SMALL: 0.72, JobSize.MEDIUM: 0.20, JobSize.LARGE: 0.06, JobSize.XLARGE: 0.02}
# Budget and least run time are the product's.
ELASTIC: Final = Elasticity(
    restart_s=60.0, moves_left=MOVES.max_moves, refill_s=MOVES.refill_s, min_run_s=MOVES.min_run_s
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What is to be simulated.

    trace, cluster: by name, or a file. load: divides the times of arrival; None leaves them. num_jobs:
    the first so many arrivals; None for all. elasticity: of every job; None for jobs that are never
    moved. precision: of every job; None for the 16-bit format that suits all cards.
    queues: shares and quotas; every job must name one of its queues.
    start_overhead_s: from the grant of a job's GPUs to its next step, at least.
    profiles: a profile file, where nothing is to be generated; ``trace`` is then a file of jobs that
    name its profiles (``profiles``, ``profile_jobs``).
    """

    trace: str = "philly-160-1"
    cluster: str = "44"
    seed: int = 0
    load: float | None = None
    num_jobs: int | None = None
    elasticity: Elasticity | None = ELASTIC
    precision: Precision | None = None
    profiles: str | None = None
    queues: QueueRules = NO_RULES
    start_overhead_s: float = 0.0
    disturbances: Disturbances = Disturbances()

    @property
    def name(self) -> str:
        """Trace, seed and cluster, then whatever else is not as usual."""
        others = [
            f"load{self.load:g}" if self.load is not None else "",
            f"first{self.num_jobs}" if self.num_jobs is not None else "",
            "rigid" if self.elasticity is None else "",
            self.precision.value if self.precision is not None else "",
            "queues" if self.queues else "",
            f"start{self.start_overhead_s:g}" if self.start_overhead_s else "",
            *self.disturbances.labels,
        ]
        trace = self.trace if self.trace in TRACES else stem(Path(self.trace))
        return ".".join([trace, f"seed{self.seed}", cluster_label(self.cluster), *filter(None, others)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A scenario, and how many rows of the trace are not in it, by reason.

    num_unlimited: jobs that may use all GPU types, since the cluster has none that the trace limits them to.
    """

    scenario: Scenario
    left_out: Mapping[str, int]
    num_unlimited: int = 0


def make_scenario(spec: WorkloadSpec) -> Scenario:
    """The scenario of ``spec``. Raises SpecError for an unknown trace or cluster, or a file that is refused."""
    return make_workload(spec).scenario


def make_workload(spec: WorkloadSpec) -> Workload:
    """As ``make_scenario``, with what was left out."""
    _check(spec)
    cluster = cluster_named(spec.cluster)
    if spec.profiles is not None:
        return _scenario(spec, cluster, *_profiled(spec, spec.profiles, cluster))
    return generate(spec, load_trace(spec.trace), cluster)


def generate(spec: WorkloadSpec, trace: Trace, cluster: Cluster) -> Workload:
    """The workload of ``spec`` on ``trace`` and ``cluster``, which its names are not looked up for."""
    generator = _Generator(spec, cluster, f"{spec.seed}/{trace.name}")
    left_out = Counter(trace.left_out)
    arrivals = trace.arrivals[: spec.num_jobs]
    types = frozenset(each.name for each in cluster.gpu_types)
    jobs: list[SimJob] = []
    num_unlimited = 0
    for number, arrival in enumerate(arrivals, start=1):
        job = generator.job(number, arrival)
        if job is None:
            left_out["no class of its size has a plan on the cluster"] += 1
        else:
            jobs.append(job)
            num_unlimited += bool(arrival.gpu_types) and not _types_there(arrival, types)
    return replace(_scenario(spec, cluster, jobs, left_out), num_unlimited=num_unlimited)


def _check(spec: WorkloadSpec) -> None:
    """Raise SpecError for numbers that mean nothing."""
    wrong = spec.disturbances.violations
    if spec.load is not None and not 0 < spec.load < math.inf:
        wrong += (Violation(path="load", value=f"{spec.load:g}", allowed="a finite number, more than 0"),)
    if spec.num_jobs is not None and spec.num_jobs < 1:
        wrong += (Violation(path="num_jobs", value=str(spec.num_jobs), allowed="at least 1, or None for all"),)
    if not 0 <= spec.start_overhead_s < math.inf:
        found = f"{spec.start_overhead_s:g}"
        wrong += (Violation(path="start_overhead_s", value=found, allowed="at least 0 seconds"),)
    if wrong:
        raise SpecError(wrong)


def _profiled(spec: WorkloadSpec, profiles: str, cluster: Cluster) -> tuple[list[SimJob], Counter[str]]:
    queued, left_out = profile_jobs(Path(spec.trace), Path(profiles), cluster, elasticity=spec.elasticity)
    disturber = Disturber(spec.disturbances, f"{spec.seed}/{stem(Path(spec.trace))}")
    load = spec.load or 1.0
    sooner = (_submitted_at(each, each.submitted_s / load) for each in queued[: spec.num_jobs])
    return [disturber.disturbed(each) for each in sooner], left_out


def _submitted_at(job: QueuedJob, submitted_s: float) -> QueuedJob:
    """``job`` with as much time to its deadline as before, if it has one."""
    deadline_s = None if job.deadline_s is None else job.deadline_s + submitted_s - job.submitted_s
    return replace(job, submitted_s=submitted_s, deadline_s=deadline_s)


def _scenario(spec: WorkloadSpec, cluster: Cluster, jobs: list[SimJob], left_out: Mapping[str, int]) -> Workload:
    for queue in dict.fromkeys(each.job.queue for each in jobs):
        refusals = spec.queues.refusals(queue, path=f"queue of a job in {spec.trace}")
        if refusals:
            raise SpecError(refusals)
    last_s = jobs[-1].job.submitted_s if jobs else 0.0
    failures = node_failures(spec.disturbances, spec.seed, cluster, last_s)
    scenario = Scenario(
        name=spec.name,
        cluster=cluster,
        jobs=tuple(_told_of_starts(each, spec.start_overhead_s) for each in jobs),
        failures=failures,
        start_overhead_s=spec.start_overhead_s,
    )
    return Workload(scenario=scenario, left_out=dict(left_out))


def _told_of_starts(sim: SimJob, overhead_s: float) -> SimJob:
    """A move takes no less than any start does, and the scheduler knows, as it learns in the product."""
    elasticity = sim.job.elasticity
    if elasticity is None or elasticity.restart_s >= overhead_s:
        return sim
    return replace(sim, job=replace(sim.job, elasticity=replace(elasticity, restart_s=overhead_s)))


class _Generator:
    """The draws of one workload, in the order of the arrivals."""

    def __init__(self, spec: WorkloadSpec, cluster: Cluster, seed: str) -> None:
        self._spec, self._hardware = spec, Hardware.of(cluster)
        self._precision = spec.precision or precision_for(cluster)
        self._types = by_speed(cluster)
        self._sizes, self._classes = (random.Random(f"{seed}/{purpose}") for purpose in ("sizes", "classes"))
        self._disturber = Disturber(spec.disturbances, seed)
        self._references: dict[tuple[int, int], tuple[float, int]] = {}
        self._drawable: dict[tuple[JobSize, frozenset[str] | None], list[tuple[str, Plans]]] = {}

    def job(self, number: int, arrival: Arrival) -> SimJob | None:
        """The job of ``arrival``; None if no class of its size has a plan."""
        gpu_s, size = gpu_seconds(arrival, self._sizes.random(), self._sizes.random())
        draw = self._classes.random()
        choices = self._choices(size, arrival)
        if not choices:
            return None
        job_class, plans = choices[int(draw * len(choices))]
        unit_gpu_s, asked = self._reference(plans, arrival.num_gpus)
        job = QueuedJob(
            run_key=f"job-{number:05d}",
            job_name=f"{arrival.name}.{job_class}",
            submitted_s=arrival.submit_s / (self._spec.load or 1.0),
            plans=plans,
            queue=arrival.queue or "default",
            team=arrival.team or "default",
            work_left=gpu_s / unit_gpu_s,
            asked_gpus=asked,
            elasticity=self._spec.elasticity,
        )
        return self._disturber.disturbed(job)

    def _reference(self, plans: Plans, num_gpus: int) -> tuple[float, int]:
        """GPU-seconds of work 1.0, and the GPUs asked for."""
        key = (id(plans), num_gpus)
        if key not in self._references:
            unit_gpu_s = reference_gpu_s(plans, num_gpus, self._types)
            self._references[key] = (unit_gpu_s, asked_gpus(plans, num_gpus))
        return self._references[key]

    def _choices(self, size: JobSize, arrival: Arrival) -> list[tuple[str, Plans]]:
        """Classes of ``size`` with their plans where ``arrival`` may run."""
        key = (size, _types_there(arrival, self._types) or None)
        if key not in self._drawable:
            classes = [each for each in CLASSES if size in each.sizes]
            found = [(each.name, plans_on(each, self._precision, self._hardware, key[1])) for each in classes]
            self._drawable[key] = [(name, plans) for name, plans in found if plans]
        return self._drawable[key]


def _types_there(arrival: Arrival, types: Container[str]) -> frozenset[str]:
    """Of the GPU types that ``arrival`` is limited to, those that are in the cluster.

    Names are of any case; one that the cluster does not have may be one of the trace of pods.
    """
    own = (each.lower() for each in arrival.gpu_types)
    named = (each if each in types else OPENB_TYPES.get(each.upper(), each) for each in own)
    return frozenset(each for each in named if each in types)


def gpu_seconds(arrival: Arrival, for_size: float, for_hours: float) -> tuple[float, JobSize]:
    """What ``arrival`` is worth, and its size. for_size, for_hours: draws from [0, 1)."""
    if arrival.duration_s is not None:
        gpu_s = arrival.duration_s * arrival.num_gpus
        return gpu_s, _size_of(gpu_s / 3600.0)
    size = SIZE_OF_APPLICATION.get(arrival.application or "") or _drawn_size(for_size)
    least, most = _GPU_HOURS[size]
    return 3600.0 * least * (most / least) ** for_hours, size


def _size_of(gpu_hours: float) -> JobSize:
    return next((size for size, (_, most) in _GPU_HOURS.items() if gpu_hours < most), JobSize.XLARGE)


def _drawn_size(uniform: float) -> JobSize:
    below = 0.0
    for size, share in _SHARES.items():
        below += share
        if uniform < below:
            return size
    return JobSize.XLARGE
