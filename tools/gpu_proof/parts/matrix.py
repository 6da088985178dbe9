"""A small model in every way the trainer offers on one card: five steps, saved at one stage, resumed at another."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from frenzy.core.values.run_files import RunPaths
from tools.gpu_proof.attempts import Bench, Ended
from tools.gpu_proof.figure_lines import Found
from tools.gpu_proof.parts.attempt_figures import figures_of, in_gib, size_of
from tools.gpu_proof.proof import Case, Part

_STEPS: Final = 5
_SAVED: Final = 3
STAGES: Final = (1, 2, 3)
PRECISIONS: Final = ("bf16", "fp16", "autocast-bf16")
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "adamw": {},
        "adamw-8bit": {"optimizer": "adamw-8bit"},
        "nf4": {"lora": {"rank": 16, "quantization": "nf4"}},
        "offload": {},
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One way to train: saved at ``stage``, resumed at the next."""

    stage: int
    precision: str
    variant: str

    @property
    def name(self) -> str:
        return f"z{self.stage} {self.precision} {self.variant}"

    @property
    def next_stage(self) -> int:
        return self.stage % len(STAGES) + 1


def _cases(bench: Bench) -> Iterator[Case]:
    cells = itertools.starmap(Cell, itertools.product(STAGES, PRECISIONS, VARIANTS))
    for cell in spread(list(cells))[: bench.scale.matrix_cases]:
        yield Case(name=cell.name, run=partial(_run, cell))


def spread(cells: list[Cell]) -> list[Cell]:
    """In an order in which the first few have seen most pairs of values, so that a part of them speaks for all."""
    left = random.Random(0).sample(cells, len(cells))
    seen: set[tuple[object, object]] = set()
    ordered = []
    while left:
        best = max(left, key=lambda cell: len(_pairs(cell) - seen))
        left.remove(best)
        seen |= _pairs(best)
        ordered.append(best)
    return ordered


def _pairs(cell: Cell) -> set[tuple[object, object]]:
    return set(itertools.combinations((cell.stage, cell.precision, cell.variant), 2))


def _run(cell: Cell, bench: Bench, folder: Path) -> Iterator[Found]:
    scale = bench.scale
    job = bench.job(
        {"config": scale.base},
        steps=_STEPS,
        sequence_length=scale.sequence_length,
        checkpoint={"every_steps": _SAVED, "keep": 2},
        precision=cell.precision,
        **VARIANTS[cell.variant],
    )
    first, then = (
        bench.plan_at(job, scale.base, zero_stage=stage, offload=cell.variant == "offload")
        for stage in (cell.stage, cell.next_stage)
    )
    whole = bench.run(job, first, folder)
    yield from figures_of(whole)
    if not whole.trained:
        return
    paths = RunPaths(str(folder))
    yield in_gib("export", size_of(Path(paths.model_dir)))
    shutil.rmtree(Path(paths.checkpoint_manifest(_STEPS)).parent)
    yield _difference(whole, bench.run(job, then, folder, attempt=2), cell)


def _difference(whole: Ended, resumed: Ended, cell: Cell) -> Found:
    """Of the losses after the resume from those of the run that never stopped."""
    name = "loss after resuming differs by"
    if not resumed.trained or resumed.result.resumed_from_step != _SAVED:
        return Found(name=name, value=None, detail=f"at stage {cell.next_stage}: {resumed.result.detail or 'afresh'}")
    straight = {each.step: each.loss for each in whole.steps}
    pairs = [(each.loss, straight[each.step]) for each in resumed.steps]
    known = [abs(loss - other) for loss, other in pairs if loss is not None and other is not None]
    detail = f"stage {cell.stage} to {cell.next_stage}, {len(known)} steps"
    return Found(name=name, value=max(known, default=None), unit="nats", detail=detail)


PART: Final = Part(
    name="matrix",
    title="125M: stages x precisions x optimizers; saved at one stage, resumed at another, exported",
    share=0.2,
    case_s=120.0,
    cases=_cases,
)
