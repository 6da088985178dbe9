"""1B at long sequences: the share of the card's peak that is used, with and without each option, and its profile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from frenzy.core.values.job import TrainingSpec
from tools.gpu_proof.attempts import Bench
from tools.gpu_proof.figure_lines import Found
from tools.gpu_proof.parts.attempt_figures import figures_of, host_memory, rounded, saving, speed_of, start
from tools.gpu_proof.proof import Case, Part

# Choices that make another training, not the same one faster.
_OTHER_TRAINING: Final = frozenset({"optimizer", "lr_schedule", "precision"})
_PROFILED: Final = "tools.gpu_proof.in_the_loop:StepProfile"
_SHOWN_KERNELS: Final = 8


def options() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each other value of each choice in a job's ``training`` that leaves the mathematics alone.

    Read from the specification, so that an option that is added is tried.
    """
    hints, default = get_type_hints(TrainingSpec), TrainingSpec()
    for each in fields(TrainingSpec):
        if each.name in _OTHER_TRAINING:
            continue
        for value in _choices(hints[each.name]):
            if value != getattr(default, each.name):
                yield f"{each.name} {value}", {each.name: value}


def _choices(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(each.value for each in kind)
    return (False, True) if kind is bool else ()


def _cases(bench: Bench) -> Iterator[Case]:
    yield Case(name="defaults", run=partial(_timed, {}))
    yield Case(name="profile", run=_profiled)
    for name, training in list(options())[: bench.scale.options]:
        yield Case(name=name, run=partial(_timed, training))
    yield Case(name="checkpoint", run=_saved)


def _timed(training: Mapping[str, Any], bench: Bench, folder: Path) -> Iterator[Found]:
    scale = bench.scale
    job = bench.job({"config": scale.one}, steps=scale.steps, sequence_length=scale.long_sequence_length, **training)
    ended = bench.run(job, bench.best_plan(job, scale.one), folder, rehearsal=True)
    yield from figures_of(ended)
    yield from speed_of(ended, bench, dict(scale.one))


def _saved(bench: Bench, folder: Path) -> Iterator[Found]:
    """With all states, which is some 14 bytes for each weight, and read again by an attempt of one step more."""
    scale, saved = bench.scale, 3
    job, longer = (
        bench.job(
            {"config": scale.one}, steps=steps, sequence_length=scale.long_sequence_length, checkpoint={"keep": 1}
        )
        for steps in (saved, saved + 1)
    )
    plan = bench.best_plan(job, scale.one)
    ended = bench.run(job, plan, folder, fresh=True)
    yield from figures_of(ended)
    yield host_memory(ended)
    yield from saving(ended, saved)
    yield start(ended)
    yield start(bench.run(longer, plan, folder, attempt=2, rehearsal=True, fresh=True))


def _profiled(bench: Bench, folder: Path) -> Iterator[Found]:
    """The kernels that took most of one settled step, as shares of all kernels' time."""
    scale, table = bench.scale, folder / "profile.json"
    job = bench.job(
        {"config": scale.one},
        steps=4,
        sequence_length=scale.long_sequence_length,
        callbacks=[{"path": _PROFILED, "args": {"file": str(table), "step": 3}}],
    )
    ended = bench.run(job, bench.best_plan(job, scale.one), folder, rehearsal=True)
    kernels = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    total = sum(kernels.values())
    if not total:
        yield Found(name="profile", value=None, detail=ended.result.detail or "the profiler saw no kernel")
        return
    for name, took in sorted(kernels.items(), key=lambda item: -item[1])[:_SHOWN_KERNELS]:
        yield Found(name=name, value=rounded(100 * took / total), unit="% of kernels' time")


PART: Final = Part(
    name="long sequence",
    title="1B at 4,096 tokens: MFU with and without each option, checkpoint, profile",
    share=0.15,
    case_s=150.0,
    cases=_cases,
)
