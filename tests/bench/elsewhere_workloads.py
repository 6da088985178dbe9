"""Workloads on which no number of ``has`` was chosen: other loads, other arrivals, made-up profiles and clusters."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.bench.jct_runs import CLUSTERS, TRACES

from frenzy.sim.traces import Arrival, load_trace
from frenzy.sim.workloads import WorkloadSpec

SEEDS: Final = (77, 78, 79)
SEED: Final = SEEDS[0]
SIA_GOODPUT: Final = "Sia's goodput, the same traces"
SIA_PROFILES: Final = Path(__file__).parents[2] / "tools/policy_bench/profiles/sia-goodput.yaml"
WHOLE: Final = 1_000_000
_NUM_WINDOWS: Final = 6
_JOBS_IN_WINDOW: Final = 120
_NUM_PROFILES: Final = 7
_NUM_PROFILED: Final = 130
# Rough throughput of one card over that of a T4: what is made up around it differs by up to half, for each profile.
_SPEEDS: Final[Mapping[str, float]] = {"t4": 1.0, "l4": 1.9, "v100-32": 3.1, "a100-40": 7.4, "h100": 14.0}
_NODES: Final[Mapping[str, Sequence[tuple[str, int, int]]]] = {
    "four-types": (("h100", 8, 1), ("v100-32", 4, 6), ("l4", 4, 5), ("t4", 2, 8)),
    "two-types": (("a100-40", 4, 5), ("t4", 8, 4)),
}


def groups(folder: Path) -> dict[str, list[WorkloadSpec]]:
    """By what is different about them; the files that they need are written to ``folder``."""
    usual = [(trace, cluster) for trace in TRACES for cluster in CLUSTERS]
    clusters = {name: _cluster(folder / f"{name}.csv", nodes) for name, nodes in _NODES.items()}
    everything = load_trace("philly-82k").arrivals
    windows = [_window(folder / f"window-{number}.csv", number, everything) for number in range(_NUM_WINDOWS)]
    profiles = _profiles(folder / "profiles.json")
    jobs = [_jobs(folder / f"profiled-{number}.csv", number) for number in range(4)]
    sia = [_sia_jobs(folder / f"sia-{trace}.csv", trace) for trace in TRACES]
    return {
        SIA_GOODPUT: [WorkloadSpec(trace=each, profiles=str(SIA_PROFILES), cluster="64", seed=SEED) for each in sia],
        "the same traces, other jobs": [
            WorkloadSpec(trace=t, cluster=c, seed=seed) for seed in SEEDS for t, c in usual
        ],
        "the same traces, half the load": [WorkloadSpec(trace=t, cluster=c, seed=SEED, load=0.5) for t, c in usual],
        "the same traces, twice the load": [WorkloadSpec(trace=t, cluster=c, seed=SEED, load=2.0) for t, c in usual],
        "other arrivals, other clusters": [
            WorkloadSpec(trace=trace, cluster=cluster, seed=SEED) for trace in windows for cluster in clusters.values()
        ],
        "made-up profiles, low load": [_profiled(profiles, each, clusters["four-types"], None) for each in jobs],
        "made-up profiles, high load": [
            *(_profiled(profiles, each, clusters["four-types"], 4.0) for each in jobs),
            *(_profiled(profiles, each, clusters["two-types"], 2.0) for each in jobs),
        ],
    }


def _sia_jobs(path: Path, trace: str) -> str:
    """The arrivals of ``trace``, each the whole training that its application names: most are alike and short."""
    rows = [(each.name, each.submit_s, each.application, WHOLE, each.num_gpus) for each in load_trace(trace).arrivals]
    return _written(path, ("job", "submit_s", "profile", "work_samples", "gpus"), rows)


def _profiled(profiles: str, jobs: str, cluster: str, load: float | None) -> WorkloadSpec:
    return WorkloadSpec(trace=jobs, profiles=profiles, cluster=cluster, seed=SEED, load=load)


def _window(path: Path, number: int, everything: Sequence[Arrival]) -> str:
    """Jobs drawn from a stretch of the large trace, none of more than 8 GPUs, their arrivals fitted to 6 to 20 h."""
    chance = Random(f"window-{number}")
    begin, length = chance.randrange(len(everything) - 4000), chance.choice((400, 1200))
    drawn = sorted(chance.sample(range(begin, begin + length), _JOBS_IN_WINDOW))
    taken = [everything[index] for index in drawn]
    first_s = taken[0].submit_s
    scale = chance.uniform(6, 20) * 3600 / max(1.0, taken[-1].submit_s - first_s)
    rows = [(round((each.submit_s - first_s) * scale), min(8, each.num_gpus), each.duration_s) for each in taken]
    return _written(path, ("time", "num_gpus", "duration"), rows)


def _cluster(path: Path, nodes: Sequence[tuple[str, int, int]]) -> str:
    rows = [
        (f"{gpu_type}-{index}", gpu_type, num_gpus, 96_000, 500_000)
        for gpu_type, num_gpus, count in nodes
        for index in range(count)
    ]
    return _written(path, ("name", "gpu_type", "gpus", "cpu_milli", "memory_mib"), rows)


def _profiles(path: Path) -> str:
    """Some scale well, some badly; some need more memory than the small cards have."""
    found = {}
    for number in range(_NUM_PROFILES):
        chance = Random(f"profile-{number}")
        base, exponent = chance.choice((2, 9, 40, 300)), chance.choice((0.55, 0.75, 0.9, 0.97))
        plans = []
        for gpu_type, speed in _SPEEDS.items():
            alone = base * speed * chance.uniform(0.6, 1.5)
            plans += [
                {"gpu_type": gpu_type, "gpus": gpus, "throughput": round(alone * gpus**exponent, 3)}
                for gpus in (1, 2, 4, 8, 16)
            ]
        memory = f"{chance.choice((6, 11, 14, 20, 28))} GiB"
        found[f"p{number}"] = {"memory": memory, "restart_s": chance.choice((15, 60, 120)), "plans": plans}
    path.write_text(json.dumps({"profiles": found}), encoding="utf-8")
    return str(path)


def _jobs(path: Path, number: int) -> str:
    """Log-normal durations with a long tail; Poisson arrivals, after one in ten a pause of half an hour."""
    chance, at_s, rows = Random(f"profiled-{number}"), 0.0, []
    for index in range(_NUM_PROFILED):
        at_s += chance.expovariate(1 / 320) + (1800 if chance.random() < 0.1 else 0)
        duration_s = min(3e5, max(60.0, chance.lognormvariate(math.log(2600), 1.6)))
        profile = f"p{chance.randrange(_NUM_PROFILES)}"
        rows.append((f"j{index}", round(at_s), profile, round(duration_s), chance.choice((1, 1, 1, 2, 4, 8))))
    return _written(path, ("job", "submit_s", "profile", "duration", "gpus"), rows)


def _written(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)
