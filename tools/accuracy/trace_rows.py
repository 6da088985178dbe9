"""Trace published rows: ``python -m tools.accuracy.trace_rows FILE.csv OUTPUT.jsonl [--model NAME]``.

Run it in an environment with the release of transformers that the rows were measured with. Rows of
one GPU with plain weights and the library's own kernels are traced, a batch at a time; what is
already in OUTPUT stays. The traced tensors are played in torch's allocator, on a card of the row's size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frenzy.core.memory.cuda_memory import CONTEXT_BYTES
from frenzy.core.memory.torch_kernels import Sharding, TorchRun
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values import codec
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.evaluation.datasets import read_dataset, release_calibrations
from frenzy.evaluation.published import Outcome, PublishedRow
from frenzy.evaluation.settings_of_runs import published_models, shape_of
from frenzy.trainer.trace.traced_moments import HOST
from tools.accuracy.caching_allocator import CachingAllocator, replayed
from tools.accuracy.datasets.formats import ALL_FORMATS
from tools.accuracy.traced import TracedRow

if TYPE_CHECKING:
    from frenzy.trainer.trace.storages import StorageLog


@dataclass(frozen=True, slots=True)
class _Case:
    row: PublishedRow
    model: str
    run: TorchRun


def main() -> None:
    """Trace the rows that can be, and append them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", action="append", help="only this model (may be repeated)")
    arguments = parser.parse_args()
    for case in _cases(arguments.data):
        if arguments.model is None or case.model in arguments.model:
            found = _trace(case)
            with arguments.output.open("a", encoding="utf-8") as stream:
                stream.write(codec.dumps(found) + "\n")
            print(f"{found.label}: {found.peak_bytes} in {found.seconds:.1f} s", flush=True)


def _cases(data: Path) -> list[_Case]:
    found = []
    for row in read_dataset(data, release_calibrations(), ALL_FORMATS):
        run = row.run
        if row.outcome is Outcome.RAN and isinstance(run, TorchRun) and _is_plain(run):
            model = next(
                name for name in published_models() if row.label.startswith(name) and shape_of(name) == run.shape
            )
            found.append(_Case(row, model, run))
    return found


def _is_plain(run: TorchRun) -> bool:
    kernels = run.saved_loss_bytes or run.fused_norms
    return run.sharding is Sharding.NONE and run.storage is WeightStorage.PLAIN and not kernels


def _config(case: _Case) -> Mapping[str, Any]:
    return {**published_models()[case.model], "use_cache": case.run.cached_key_values > 0}


def _trace(case: _Case) -> TracedRow:
    from frenzy.trainer.trace.step import TraceChoices, traced_run

    started = time.monotonic()
    played: list[CachingAllocator] = []
    run = case.run
    choices = TraceChoices(
        batch=run.micro_batch,
        sequence_length=run.sequence_length,
        precision=Precision.BF16,
        checkpointing=run.coefficients.checkpointing,
        reentrant=run.reentrant,
        attention="flash_attention_2",
        lora=_lora(run),
    )
    room = case.row.capacity_bytes - CONTEXT_BYTES
    result = traced_run(_config(case), choices, seen=lambda log, _: played.append(replayed(changes(log), room)))
    return TracedRow(
        dataset=case.row.dataset,
        number=case.row.number,
        label=case.row.label,
        peak_bytes=result.peak_bytes,
        seconds=round(time.monotonic() - started, 1),
        versions=tuple(f"{name} {version(name)}" for name in ("torch", "transformers")),
        reserved_bytes=played[0].reserved_bytes,
    )


def _lora(run: TorchRun) -> LoraSpec | None:
    adapters = run.coefficients.adapters
    if adapters is None:
        return None
    targets = tuple(sorted({each.name.rsplit(".lora", 1)[0].rsplit(".", 1)[-1] for each in run.trained.layer}))
    dropout = 0.1 if adapters.dropout else 0.0
    return LoraSpec(rank=run.adapter_rank, alpha=16.0, dropout=dropout, target_modules=targets)


def changes(log: StorageLog, first: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """Storages on the card in the order in which they are made (with their bytes) and end (with none)."""
    for event in log.events[first:end]:
        tensor = event if event >= 0 else ~event
        made = log.allocations[tensor]
        if made.purpose != HOST and made.num_bytes:
            yield tensor, made.num_bytes if event >= 0 else 0


if __name__ == "__main__":
    main()
