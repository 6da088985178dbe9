"""The runs of ``bench_jct``: every trace, cluster and seed under every policy, in two processes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Final

from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.sim.disturbances import Disturbances
from frenzy.sim.engine import simulate
from frenzy.sim.scenario_jobs import Scenario
from frenzy.sim.summaries import Summary, summarise
from frenzy.sim.workloads import WorkloadSpec, make_scenario
from tools.policy_bench.rivals import scheduler_named

TRACES: Final = ("philly-160-1", "philly-160-2", "philly-160-3", "philly-160-4")
CLUSTERS: Final = ("44", "64")
SEEDS: Final = (0, 1, 2)
SIGMA: Final = 1.4
NUM_WORKERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One policy under one condition.

    sigma: work is believed to be the true one times exp(N(0, sigma)). offload: whether it is given plans
    that keep the optimizer in host memory, for jobs that have others. first_seed_only: of the first seed only.
    """

    label: str
    policy: str
    sigma: float = 0.0
    offload: bool = True
    first_seed_only: bool = False


HAS: Final = "has"
HAS_WRONG: Final = "has, wrong estimates"
SIA: Final = "sia-ilp"
SIA_RIGID: Final = "sia-rigid"
SIA_WORK: Final = "sia-ilp-work"
PAPER: Final = "frenzy-paper"
PAPER_ALL: Final = "frenzy-paper, all plans"

SERIES: Final = (
    Series(label=HAS, policy="has"),
    Series(label=HAS_WRONG, policy="has", sigma=SIGMA),
    Series(label=SIA, policy="sia-ilp"),
    Series(label=SIA_RIGID, policy="sia-rigid"),
    Series(label=SIA_WORK, policy="sia-ilp-work", first_seed_only=True),
    Series(label="srtf", policy="srtf"),
    Series(label="srtf, wrong estimates", policy="srtf", sigma=SIGMA),
    Series(label="gavel-lp", policy="gavel-lp"),
    Series(label="backfill", policy="backfill"),
    Series(label=PAPER, policy="frenzy-paper-published", offload=False),
    Series(label=PAPER_ALL, policy="frenzy-paper-published"),
    Series(label="fifo", policy="fifo"),
)
_SLOW: Final = (SIA_RIGID, SIA, SIA_WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One series on one workload."""

    series: Series
    trace: str
    cluster: str
    seed: int

    @property
    def scenario(self) -> str:
        """The workload's name, which does not tell what is believed of it, so that runs can be paired."""
        return WorkloadSpec(trace=self.trace, cluster=self.cluster, seed=self.seed).name


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a case. summary: under the names of the series and the scenario. jcts_s: ascending."""

    summary: Summary
    jcts_s: tuple[float, ...]


def cases(seeds: Iterable[int] = SEEDS) -> list[Case]:
    """All of them, in the order of the series."""
    return [
        Case(series=series, trace=trace, cluster=cluster, seed=seed)
        for series in SERIES
        for trace in TRACES
        for cluster in CLUSTERS
        for seed in seeds
        if seed == SEEDS[0] or not series.first_seed_only
    ]


def run_all(todo: list[Case]) -> list[Run]:
    """The runs of ``todo``, in its order; the slow ones begin first, so that both processes end together."""
    begun = sorted(todo, key=lambda case: _SLOW.index(case.series.label) if case.series.label in _SLOW else len(_SLOW))
    with get_context("spawn").Pool(NUM_WORKERS) as pool:
        done = dict(zip(begun, _told(pool.imap(run_case, begun), len(begun)), strict=True))
    return [done[case] for case in todo]


def _told(runs: Iterable[Run], total: int) -> Iterator[Run]:
    for number, run in enumerate(runs, start=1):
        what = f"{number}/{total}  {run.summary.policy}, {run.summary.scenario}"
        print(f"\r{what:<76}", end="" if number < total else "\n", file=sys.stderr, flush=True)
        yield run


def run_case(case: Case) -> Run:
    """Simulate ``case``; the same for the same case but for CPU times."""
    believed = Disturbances(estimate_sigma=case.series.sigma)
    spec = WorkloadSpec(trace=case.trace, cluster=case.cluster, seed=case.seed, disturbances=believed)
    scenario = make_scenario(spec)
    if not case.series.offload:
        scenario = without_offload(scenario)
    result = simulate(scenario, scheduler_named(case.series.policy))
    return Run(
        summary=replace(summarise(result), policy=case.series.label, scenario=case.scenario),
        jcts_s=tuple(sorted(job.jct_s for job in result.jobs if job.jct_s is not None)),
    )


def without_offload(scenario: Scenario) -> Scenario:
    """``scenario`` with no plan that keeps the optimizer in host memory, for jobs that have any other."""
    jobs = tuple(replace(each, job=replace(each.job, plans=_in_gpus(each.job.plans))) for each in scenario.jobs)
    return replace(scenario, jobs=jobs)


def _in_gpus(plans: tuple[ResourcePlan, ...]) -> tuple[ResourcePlan, ...]:
    return tuple(plan for plan in plans if not plan.offload_optimizer) or plans
