"""Plans of one job timed against each other: is the one that MARP would take first the fastest?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from frenzy.core.memory.closed_form import PlanRow
from tools.gpu_proof.attempts import Bench
from tools.gpu_proof.figure_lines import Found
from tools.gpu_proof.parts.attempt_figures import figures_of, speed_of
from tools.gpu_proof.proof import Case, Part
from tools.gpu_proof.scale import Compared


def _cases(bench: Bench) -> Iterator[Case]:
    for job in bench.scale.compared:
        for micro_batch, checkpointing in job.plans:
            name = f"{job.name}: micro-batch {micro_batch}{', checkpointing' if checkpointing else ''}"
            yield Case(name=name, run=partial(_timed, job, micro_batch, checkpointing))


def _timed(compared: Compared, micro_batch: int, checkpointing: bool, bench: Bench, folder: Path) -> Iterator[Found]:
    """Weights are drawn, not read: what a file says changes neither time nor memory."""
    config = dict(compared.config)
    job = bench.job(
        {"config": config},
        steps=bench.scale.steps,
        sequence_length=compared.sequence_length,
        **compared.training,
    )
    row = PlanRow(1, 1, 1, micro_batch, bench.scale.batch // micro_batch, checkpointing)
    ended = bench.run(job, bench.plan_of(job, config, row), folder, rehearsal=True)
    yield from figures_of(ended)
    yield from speed_of(ended, bench, config)


PART: Final = Part(
    name="plans",
    title="plans of one job timed against each other: 1B, 125M, and 8B with adapters",
    share=0.17,
    case_s=120.0,
    cases=_cases,
)
