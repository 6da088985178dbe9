"""What each number of ``has`` does: figures of variants, each one number away from the defaults, over the defaults'.

Run it as ``PYTHONPATH=plugins python -m tests.bench.tune_has`` (about three minutes of CPU). Its seeds are of the
tuning alone: ``bench_jct`` scores others.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Final

from tests.bench.jct_runs import CLUSTERS, SIGMA, TRACES

from frenzy.core.scheduling import HasPolicy
from frenzy.sim.disturbances import Disturbances
from frenzy.sim.engine import simulate
from frenzy.sim.schedulers import ProductScheduler
from frenzy.sim.summaries import Summary, summarise
from frenzy.sim.workloads import WorkloadSpec, make_scenario

SEEDS: Final = (7, 24)
VARIANTS: Final[Mapping[str, HasPolicy]] = {
    "urgency 0.4": HasPolicy(urgency=0.4),
    "urgency 1.2": HasPolicy(urgency=1.2),
    "slowdown 5": HasPolicy(slowdown=5.0),
    "slowdown 10": HasPolicy(slowdown=10.0),
    "slowdown 20": HasPolicy(slowdown=20.0),
    "slowdown 50": HasPolicy(slowdown=50.0),
    "hysteresis 0.7": HasPolicy(hysteresis=0.7),
    "hysteresis 0.9": HasPolicy(hysteresis=0.9),
    "disturbance 6": HasPolicy(disturbance=6.0),
    "disturbance 14": HasPolicy(disturbance=14.0),
    "gain_without_budget 1.2": HasPolicy(gain_without_budget=1.2),
    "gain_without_budget 3": HasPolicy(gain_without_budget=3.0),
    "overrun_share 0.3": HasPolicy(overrun_share=0.3),
    "overrun_share 2": HasPolicy(overrun_share=2.0),
    "payback 1.5": HasPolicy(payback=1.5),
    "payback 8": HasPolicy(payback=8.0),
}


def main() -> None:
    """Print a row for each variant: with known work, then with wrong estimates."""
    default = {sigma: summaries(HasPolicy(), sigma) for sigma in (0.0, SIGMA)}
    for name, policy in VARIANTS.items():
        columns = (over(summaries(policy, sigma), default[sigma]) for sigma in default)
        print(f"{name:24}  known: {'  wrong estimates: '.join(columns)}", flush=True)


def summaries(policy: HasPolicy, sigma: float) -> list[Summary]:
    """Of every trace, cluster and seed."""
    believed = Disturbances(estimate_sigma=sigma)
    specs = [
        WorkloadSpec(trace=trace, cluster=cluster, seed=seed, disturbances=believed)
        for trace in TRACES
        for cluster in CLUSTERS
        for seed in SEEDS
    ]
    return [summarise(simulate(make_scenario(spec), ProductScheduler(policy))) for spec in specs]


def over(found: list[Summary], default: list[Summary]) -> str:
    """Means of the scenarios' ratios; below 1, the variant is better."""
    fields = {"JCT": "jct_mean_s", "p99": "jct_p99_s", "makespan": "makespan_s"}
    pairs = list(zip(found, default, strict=True))
    ratios = {name: fmean(getattr(one, of) / getattr(other, of) for one, other in pairs) for name, of in fields.items()}
    return "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())


if __name__ == "__main__":
    main()
