"""The jobs of the real mix: sizes, lengths and arrivals drawn by a seed, for the laptop cluster.

Lengths are log-uniform, arrivals a Poisson process. The cluster is the laptop's with its virtual GPUs
slowed down by the same factor, so that this machine's cores can keep up with all of them at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any, Final

import yaml
from tests.e2e.walker import MODEL, job_text

from frenzy.adapters.spec.spec_file import checked_spec
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.offline import plan_offline
from frenzy.settings import CHECKOUT, load_settings

SPEED: Final = 0.125
_POSITIONS: Final = 128
_LENGTHS_S: Final = (10.0, 90.0)
_MEAN_GAP_S: Final = 4.0
_STEPS_TO_ASK_FOR: Final = 100
_LEAST_STEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A GPT-2 of ``layers`` blocks ``width`` wide, trained on ``batch`` sequences of ``tokens`` a step."""

    name: str
    width: int
    layers: int
    tokens: int
    batch: int


SIZES: Final = (
    Size(name="s", width=128, layers=2, tokens=64, batch=8),
    Size(name="s-wide-batch", width=128, layers=2, tokens=64, batch=16),
    Size(name="m", width=192, layers=3, tokens=128, batch=8),
    Size(name="l", width=256, layers=3, tokens=128, batch=4),
    Size(name="xl", width=320, layers=5, tokens=128, batch=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixJob:
    """One job: its specification, when it arrives (seconds after the first one), and MARP's plans, best first."""

    name: str
    text: str
    at_s: float
    plans: tuple[ResourcePlan, ...]


def slowed_cluster(folder: Path, speed: float = SPEED) -> Path:
    """The laptop's cluster file with every GPU at ``speed`` of its rate, in ``folder``."""
    cluster = yaml.safe_load((CHECKOUT / "include/clusters/laptop.yaml").read_text(encoding="utf-8"))
    for kind in cluster["gpu_types"].values():
        rate, unit = kind["flops"].split()
        kind["flops"] = f"{float(rate) * speed:g} {unit}"
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster, sort_keys=False), encoding="utf-8")
    return path


def mix(num_jobs: int, seed: int, corpus: Path, cluster: Path) -> tuple[MixJob, ...]:
    """``num_jobs`` jobs; every size occurs as often as any other, give or take one."""
    draw = random.Random(seed)
    sizes = [SIZES[index % len(SIZES)] for index in range(num_jobs)]
    draw.shuffle(sizes)
    jobs, at_s = [], 0.0
    for index, size in enumerate(sizes):
        length_s = exp(draw.uniform(log(_LENGTHS_S[0]), log(_LENGTHS_S[1])))
        steps = max(_LEAST_STEPS, round(length_s / step_s(size, corpus, cluster)))
        name = f"mix-{index:02d}-{size.name}"
        text = spec(name, size, steps, corpus)
        jobs.append(MixJob(name=name, text=text, at_s=at_s, plans=plans_of(text, corpus.parent, cluster)))
        at_s += draw.expovariate(1 / _MEAN_GAP_S)
    return tuple(jobs)


def spec(name: str, size: Size, steps: int, corpus: Path) -> str:
    """The specification, as YAML. Checkpoints are for moves only: none on the way."""
    sections: dict[str, Any] = {
        "model": {"config": {**MODEL, "n_embd": size.width, "n_layer": size.layers, "n_positions": _POSITIONS}},
        "data": {"sequence_length": size.tokens},
        "training": {"global_batch_size": size.batch, "max_steps": steps},
        "checkpoint": {"every_steps": 100_000, "keep": 1},
    }
    return job_text(name, corpus, **sections)


def step_s(size: Size, corpus: Path, cluster: Path) -> float:
    """The predicted step time of the fastest plan with one GPU, in seconds."""
    plans = plans_of(spec("step", size, _STEPS_TO_ASK_FOR, corpus), corpus.parent, cluster)
    return min(plan.predicted_run_s for plan in plans if plan.num_gpus == 1) / _STEPS_TO_ASK_FOR


def plans_of(text: str, folder: Path, cluster: Path) -> tuple[ResourcePlan, ...]:
    """What MARP offers for the specification ``text`` before anything runs, best first."""
    path = folder / "asked.yaml"
    path.write_text(text, encoding="utf-8")
    settings = load_settings({"FRENZY_HOME": str(folder / "home")})
    told = plan_offline(checked_spec(path).job, settings, cluster, "closed-form")
    return tuple(each.plan for each in told.candidates if each.feasible)
