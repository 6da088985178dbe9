"""How the CPU time of a full pass grows with the number of jobs and of GPUs, as figures and as a picture."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tests.bench.report import figure
from tests.bench.schedule_facts import busy, cluster_of, grown, jobs_on, now_of, rigid

from frenzy.core.scheduling import SchedulingState
from frenzy.core.values.scheduling_facts import SchedulingFacts
from frenzy.sim.clusters import cluster_named
from tools.policy_bench.rivals import scheduler_named

POLICIES = ("has", "backfill", "frenzy-paper-published", "sia-ilp")
NUM_JOBS = (160, 320, 640, 1280, 2560, 5120, 10_240)
NUM_GPUS = (256, 512, 1024, 2048, 4096, 8192)
SIA_JOBS = 1280
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00")

Series = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class Growth:
    """Seconds of a full pass, by policy: over jobs at 2,048 GPUs, and over GPUs at 1,280 jobs."""

    by_jobs: Series
    by_gpus: Series

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            figure(f"growth: {policy}, {jobs:,} jobs on {gpus:,} GPUs", 1000 * seconds, "ms")
            for policy in POLICIES
            for jobs, gpus, seconds in (
                *((at, 2048, seconds) for at, seconds in self.by_jobs[policy]),
                *((1280, at, seconds) for at, seconds in self.by_gpus[policy]),
            )
        ]


def growth() -> Growth:
    """Measure every point: jobs of one list, on clusters of the same mix; sia-ilp with up to 1,280 jobs."""
    by_jobs: Series = {policy: [] for policy in POLICIES}
    by_gpus: Series = {policy: [] for policy in POLICIES}
    jobs = jobs_on("2048", max(NUM_JOBS))
    for num_jobs in NUM_JOBS:
        facts = busy(cluster_of("2048"), jobs[:num_jobs])
        for policy in POLICIES:
            if policy != "sia-ilp" or num_jobs <= SIA_JOBS:
                by_jobs[policy].append((num_jobs, pass_s(facts, policy, now_of(jobs[:num_jobs]))))
    for num_gpus in NUM_GPUS:
        facts = busy(grown(cluster_named("288"), num_gpus), jobs[:SIA_JOBS])
        for policy in POLICIES:
            by_gpus[policy].append((num_gpus, pass_s(facts, policy, now_of(jobs[:SIA_JOBS]))))
    return Growth(by_jobs, by_gpus)


def pass_s(facts: SchedulingFacts, policy: str, now_s: float) -> float:
    """CPU seconds of one full pass of the simulator's policy of that name, the state made before.

    Policies that move no job get the same facts with jobs that may not be moved.
    """
    scheduler = scheduler_named(policy)
    elastic = policy in ("has", "sia-ilp")
    state = SchedulingState.of(facts if elastic else rigid(facts), scheduler.rules)
    return median_cpu_s(lambda: scheduler.decide(state, now_s), repeats=3 if policy == "sia-ilp" else 5)


def median_cpu_s(call: Callable[[], object], *, repeats: int = 5) -> float:
    """Median process CPU time of ``call``."""
    return statistics.median(cpu_s(call) for _ in range(repeats))


def cpu_s(call: Callable[[], object]) -> float:
    """Process CPU time of one ``call``, garbage of what was before not counted."""
    gc.collect()
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def draw_growth(found: Growth, file: Path) -> None:
    """Two panels, time over jobs and over GPUs, both logarithmic."""
    picture = Figure(figsize=(10, 4.4), dpi=130, layout="constrained")
    panels = picture.subplots(1, 2, sharey=True)
    for axes, series, what, title in (
        (panels[0], found.by_jobs, "jobs, running and waiting", "2,048 GPUs"),
        (panels[1], found.by_gpus, "GPUs", "1,280 jobs"),
    ):
        for policy, colour in zip(POLICIES, _COLOURS, strict=True):
            counts = [count for count, _ in series[policy]]
            axes.plot(counts, [1000 * each for _, each in series[policy]], "o-", color=colour, label=policy, ms=4)
        axes.set(xscale="log", yscale="log", xlabel=what, title=title)
        ticks = NUM_JOBS if series is found.by_jobs else NUM_GPUS
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=30)
        axes.minorticks_off()
        axes.grid(color="#E6E6E6")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("CPU time of one full pass, ms")
    panels[0].legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(file)
