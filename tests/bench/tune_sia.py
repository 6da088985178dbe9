"""How Sia's numbers were chosen: average JCT of variants, each one number away from the published ones.

Run it as ``PYTHONPATH=plugins python -m tests.bench.tune_sia`` (about fifteen minutes of CPU); its table is quoted in
``tools.policy_bench.sia``. Its seeds are of the tuning alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from frenzy.sim.engine import simulate
from frenzy.sim.scenario_jobs import Scenario
from frenzy.sim.workloads import WorkloadSpec, make_scenario
from tools.policy_bench.sia import SiaParameters, SiaScheduler

# Trace, seed, and the load: None leaves the trace as it is.
WORKLOADS = (
    ("philly-160-3", 101, None),
    ("philly-160-4", 102, 2.0),
    ("philly-160-1", 103, 2.0),
    ("philly-160-3", 104, 4.0),
)
VARIANTS: Mapping[str, SiaParameters] = {
    "as published": SiaParameters(),
    "power -1": SiaParameters(power=-1.0),
    "power -0.25": SiaParameters(power=-0.25),
    "no_allocation 4": SiaParameters(no_allocation=4.0),
    "restart_weight 0.5": SiaParameters(restart_weight=0.5),
    "restart_weight 2": SiaParameters(restart_weight=2.0),
    "rounds of 30 s": SiaParameters(round_s=30.0),
    "rounds of 120 s": SiaParameters(round_s=120.0),
    "work_power 0.25": SiaParameters(work_power=0.25),
    "work_power 0.5": SiaParameters(work_power=0.5),
    "work_power 1": SiaParameters(work_power=1.0),
    "rigid": SiaParameters(rigid=True),
    "rigid, no_allocation 2": SiaParameters(rigid=True, no_allocation=2.0),
    "rigid, no_allocation 4": SiaParameters(rigid=True, no_allocation=4.0),
}


def main() -> None:
    """Print a row for each variant: average JCT of each workload and over all, restarts per job, CPU per round."""
    scenarios = [make_scenario(WorkloadSpec(trace=trace, seed=seed, load=load)) for trace, seed, load in WORKLOADS]
    for name, parameters in VARIANTS.items():
        print(row(name, parameters, scenarios), flush=True)


def row(name: str, parameters: SiaParameters, scenarios: list[Scenario]) -> str:
    results = [simulate(scenario, SiaScheduler(parameters)) for scenario in scenarios]
    jct_h = [fmean(job.jct_s for job in each.jobs if job.jct_s is not None) / 3600 for each in results]
    restarts = fmean(fmean(job.num_restarts for job in each.jobs) for each in results)
    rounds_ms = 1000 * fmean(seconds for each in results for seconds in each.decision_s)
    each_h = "  ".join(f"{hours:6.3f}" for hours in jct_h)
    return f"{name:22}  {each_h}  mean {fmean(jct_h):6.3f} h  {restarts:5.2f} restarts  {rounds_ms:5.1f} ms a round"


if __name__ == "__main__":
    main()
