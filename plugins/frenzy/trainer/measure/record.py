"""A measurement, and the file of them: JSON lines that survive a writer killed in mid-line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from frenzy.core.memory.calibration import Calibration
from frenzy.core.values import codec
from frenzy.core.values.codec import Inlining
from frenzy.core.values.errors import ContractError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.peak_memory import KEYS_IN_A_MEASUREMENT, PeakMemory
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.trainer.measure.case import MeasureCase, prediction_of


class Outcome(StrEnum):
    """How a case ended. refused: the trainer does not offer it; failed: for another reason than memory."""

    RAN = "ran"
    OUT_OF_MEMORY = "out-of-memory"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Inlining):
    """What was predicted of a case and what was measured.

    prediction: None where the closed form covers no such case. peaks: of any rank in any step, None unless
    the case ran; by_step: of tensors of any rank in each step. budget_bytes: the memory the case had.
    needed_bytes: least memory of a card in which it runs, by bisection. imagined_ranks: only rank 0
    ran. card: name of the GPU, or ``virtual``. detail: why it did not run, in one sentence.
    """

    case: MeasureCase
    num_parameters: int
    prediction: MemoryPrediction | None
    peaks: PeakMemory | None = field(default=None, metadata=KEYS_IN_A_MEASUREMENT)
    by_step: tuple[int, ...] = ()
    detail: str = ""
    outcome: Outcome = Outcome.RAN
    kind: DeviceKind = DeviceKind.VIRTUAL
    card: str = "virtual"
    budget_bytes: int | None = None
    needed_bytes: int | None = None
    imagined_ranks: bool = False
    compute_capability: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    measured_on: str = ""

    @property
    def measured_bytes(self) -> int | None:
        """The highest peak of tensors; None unless the case ran."""
        return None if self.peaks is None else self.peaks.allocated_bytes

    @property
    def ran(self) -> bool:
        return self.outcome is Outcome.RAN and self.peaks is not None

    @property
    def error(self) -> float | None:
        """Relative error of the predicted peak; positive when it was predicted too high."""
        if not self.measured_bytes or self.prediction is None:
            return None
        return self.prediction.peak_allocated_bytes / self.measured_bytes - 1.0

    @property
    def is_covered(self) -> bool | None:
        """Whether the requirement was enough: against what is needed where that is known, else what was held.

        A case that ran out of memory in a budget tells only that it needs more than that budget.
        """
        if self.prediction is None or self.outcome in (Outcome.REFUSED, Outcome.FAILED):
            return None
        required = self.prediction.required_bytes
        if self.outcome is Outcome.OUT_OF_MEMORY:
            return False if self.budget_bytes is not None and required <= self.budget_bytes else None
        held = self.needed_bytes or (self.peaks.held_bytes if self.peaks else 0)
        return required >= held


def read_measurements(file: Path) -> list[Measurement]:
    """The measurements in ``file``, the last one of each case and card; none when there is no file.

    A last line without its end is what a killed writer left, and is passed over. Raises
    ContractError naming file and line for any other line that does not have the form.
    """
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    found = [_parsed(file, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    return list({(each.case.key, each.card): each for each in found}.values())


def _parsed(file: Path, number: int, line: str) -> Measurement:
    try:
        return codec.loads(Measurement, line)
    except ContractError as error:
        raise ContractError(f"{file}, line {number}: {error.reason.detail}") from error


def append_measurement(file: Path, measurement: Measurement) -> None:
    """Put ``measurement`` at the end of ``file``, whole and on disk when this returns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = (codec.dumps(measurement) + "\n").encode()
    with file.open("a+b") as out:
        out.truncate(_whole_lines_bytes(file))
        out.write(line)
        out.flush()
        os.fsync(out.fileno())


def _whole_lines_bytes(file: Path) -> int:
    return file.read_bytes().rfind(b"\n") + 1


def replayed(stored: Iterable[Measurement] | Path, calibration: Calibration) -> Iterator[Measurement]:
    """Stored measurements with today's prediction."""
    for before in read_measurements(stored) if isinstance(stored, Path) else stored:
        if before.outcome is Outcome.REFUSED:
            yield before
        else:
            yield replace(
                before, prediction=prediction_of(before.case, calibration, before.kind, before.compute_capability)
            )
