"""What each rank reports each step, and the folded view the monitor judges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import groupby
from operator import or_
from typing import Final

from frenzy.core.values import codec
from frenzy.core.values.codec import OMITTED_IF_EMPTY, Inlining
from frenzy.core.values.peak_memory import KEYS_IN_A_STEP, PeakMemory

# All but tabs and line ends: they move a terminal's cursor, and worse. Halves of characters no message can carry.
_NOT_SHOWN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(Inlining):
    """One rank's report of one optimizer step; one JSON line in a telemetry chunk.

    step counts from 1 over the whole run (a resumed attempt goes on counting).
    loss: None where it is no finite number: the training has diverged.
    peaks: during the step. capacity_bytes: memory or budget.
    step_time_s includes the throttle of a virtual GPU (throttle_s of it), and no validation.
    validation_loss: of all ranks, where a validation followed the step.
    baseline_bytes: memory held right before the model was made. releases: of a script's libraries, in the first record.
    """

    rank: int
    step: int
    time_s: float
    loss: float | None
    step_time_s: float
    tokens_per_s: float
    peaks: PeakMemory = field(metadata=KEYS_IN_A_STEP)
    capacity_bytes: int
    num_alloc_retries: int = 0
    num_ooms: int = 0
    learning_rate: float = 0.0
    grad_norm: float | None = None
    throttle_s: float = 0.0
    utilisation: float | None = None
    clock_reasons: int | None = None
    ecc_errors: int | None = None
    host_rss_bytes: int = 0
    validation_loss: float | None = None
    releases: Mapping[str, str] = field(default_factory=dict, hash=False, metadata=OMITTED_IF_EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestHead:
    """First line of a node's newest records. num_chunks: of its history, as far as that was put."""

    num_chunks: int


def lines_of(records: Iterable[StepRecord]) -> str:
    """A chunk of a node's history."""
    return "".join(map(_line, records))


@lru_cache(maxsize=4096)  # the newest records are written again and again
def _line(record: StepRecord) -> str:
    return f"{codec.dumps(record)}\n"


def latest_text(num_chunks: int, records: Iterable[StepRecord]) -> str:
    """A node's newest records behind the head that says how many chunks of history lie before them."""
    return f"{codec.dumps(LatestHead(num_chunks=num_chunks))}\n{lines_of(records)}"


def thinned(records: Sequence[StepRecord], every: int, *, keeps_last: bool = True) -> list[StepRecord]:
    """One record of a rank for each group of so many steps, with the peaks of the whole group.

    Groups end at multiples of ``every``, so that those of different ranks are of the same steps. The first record and
    the last group stay as they are; the latter unless not ``keeps_last``.
    """
    groups = [list(each) for _, each in groupby(records[1:], key=lambda each: -(-each.step // every))]
    last = groups.pop() if groups and keeps_last else []
    return [*records[:1], *map(_merged, groups), *last]


def _merged(group: Sequence[StepRecord]) -> StepRecord:
    """The last one, with the peaks of all."""
    validated = [each.validation_loss for each in group if each.validation_loss is not None]
    peaks = reduce(or_, (each.peaks for each in group))
    return replace(group[-1], peaks=peaks, validation_loss=validated[-1] if validated else None)


# How the phases of a save begin, to be known by those who asked for it.
SAVING: Final = "saving a checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One node's sign of progress where there are no steps; overwritten, in a file of its own beside the chunks.

    phase: what goes on. time_s: when it last got further. done: how far, in units of the phase.
    """

    phase: str
    time_s: float
    done: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPeak(Inlining):
    """One step over all ranks: the worst memory, the mean loss (None if a rank has none), the slowest time.

    least_peak_bytes: what tensors held at most on the GPU that was filled least.
    """

    step: int
    time_s: float
    loss: float | None
    step_time_s: float
    tokens_per_s: float
    peaks: PeakMemory = field(metadata=KEYS_IN_A_STEP)
    capacity_bytes: int
    num_alloc_retries: int
    num_ranks: int
    learning_rate: float = 0.0
    validation_loss: float | None = None
    least_peak_bytes: int = 0


def fold_steps(records: tuple[StepRecord, ...]) -> tuple[StepPeak, ...]:
    """One StepPeak for each step in ``records``, ascending; ranks may be missing in the newest."""
    by_step: dict[int, list[StepRecord]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    return tuple(_fold(by_step[step]) for step in sorted(by_step))


def _fold(ranks: list[StepRecord]) -> StepPeak:
    losses = [each.loss for each in ranks if each.loss is not None]
    return StepPeak(
        step=ranks[0].step,
        time_s=max(each.time_s for each in ranks),
        loss=None if len(losses) < len(ranks) else sum(losses) / len(losses),
        step_time_s=max(each.step_time_s for each in ranks),
        tokens_per_s=sum(each.tokens_per_s for each in ranks),
        peaks=reduce(or_, (each.peaks for each in ranks)),
        capacity_bytes=min(each.capacity_bytes for each in ranks),
        num_alloc_retries=sum(each.num_alloc_retries for each in ranks),
        num_ranks=len(ranks),
        learning_rate=ranks[0].learning_rate,
        validation_loss=ranks[0].validation_loss,
        least_peak_bytes=min(each.peaks.allocated_bytes for each in ranks),
    )


def printable(text: str) -> str:
    """``text`` without what a terminal or a log would not show but obey; a carriage return ends a line."""
    return _NOT_SHOWN.sub("", re.sub(r"\r\n?", "\n", text))
