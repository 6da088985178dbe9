"""Public reports of runs that fitted a card or did not, held to what the memory model would have said.

A report names its run as a row of one's own runs does. What nobody recorded is a range however wide: a report is
judged where its whole range fits, or none of it does, and is undecided in between. Two reports of the same settings
contradict each other where one ran on a card no larger than that on which the other ran out of memory: something
that neither records differed, no prediction can agree with both, and neither is judged.

The requirement answers for loading the model, for steps, and for saving where that gathers the model on each card. Who
says that a run ran says so of its steps. One that failed may have failed anywhere, unless its thread tells the phase.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from frenzy.adapters.calibration_file import calibration_of_release
from frenzy.core.memory.calibration import Calibration
from frenzy.core.values.errors import PermanentError
from frenzy.evaluation.cells import choice, text
from frenzy.evaluation.margin import Margin
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import Cells, ModelledRun, UnknownRow
from frenzy.evaluation.read_own import alternatives, capacity_of, run_of

_BESIDE_SETTINGS: Final = frozenset(
    {"source", "gpu", "outcome", "phase", "torch", "ended_with", "ended_settings", "note", "explanation"}
)
_STEPS: Final = "steps"
# Phases in which a run failed: whether the requirement answers for it.
_PHASES: Final = {"": True, _STEPS: True, "saving": True, "loading": True, "end of epoch": False}


class Verdict(StrEnum):
    """What is predicted of a report's run."""

    FITS = "ran"
    FAILS = "out of memory"
    UNDECIDED = "undecided"
    CONTRADICTED = "contradicted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedReport:
    """One report.

    outcome: what came of the run. required_bytes: least and most. why: of a refusal. explanation: what is known of a
    report that does not agree, as the file says. settings: of the run, whatever the card.
    """

    source: str
    label: str
    outcome: str
    verdict: Verdict
    capacity_bytes: int = 0
    required_bytes: tuple[int, int] = (0, 0)
    why: str = ""
    explanation: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def is_judged(self) -> bool:
        """Whether the model says one thing of it."""
        return self.verdict in (Verdict.FITS, Verdict.FAILS)

    @property
    def agrees(self) -> bool:
        """Whether prediction and outcome are the same."""
        return self.verdict.value == self.outcome

    @property
    def is_dangerous(self) -> bool:
        """Whether it was predicted to fit and did not."""
        return self.verdict is Verdict.FITS and self.outcome == Verdict.FAILS.value


def read_reports(path: Path, calibration: Calibration, margin: Margin) -> Sequence[JudgedReport]:
    """Every report of the file, judged."""
    with path.open(encoding="utf-8", newline="") as file:
        return without_contradictions([judged(row, calibration, margin) for row in csv.DictReader(file)])


def without_contradictions(reports: Sequence[JudgedReport]) -> Sequence[JudgedReport]:
    """``reports``, of which those that contradict another one are judged no more."""
    return tuple(
        replace(each, verdict=Verdict.CONTRADICTED)
        if each.is_judged and any(_contradict(each, other) or _contradict(other, each) for other in reports)
        else each
        for each in reports
    )


def _contradict(ran: JudgedReport, failed: JudgedReport) -> bool:
    return (
        ran.settings == failed.settings
        and ran.required_bytes == failed.required_bytes
        and (ran.outcome, failed.outcome) == (Verdict.FITS.value, Verdict.FAILS.value)
        and ran.capacity_bytes <= failed.capacity_bytes
    )


def judged(cells: Cells, calibration: Calibration, margin: Margin) -> JudgedReport:
    """One report."""
    source, outcome = text(cells, "source", ""), text(cells, "outcome")
    framework = text(cells, "framework")
    sharding = f"ZeRO-{text(cells, 'zero_stage')}" if framework == "deepspeed" else framework.upper()
    label = (
        f"{text(cells, 'model')} {sharding} b{text(cells, 'micro_batch')} "
        f"s{text(cells, 'sequence_length')} x{text(cells, 'num_gpus', '1')} {text(cells, 'gpu')}"
    )
    explanation = text(cells, "explanation", "")
    try:
        if text(cells, "left_out", ""):
            raise UnknownRow(text(cells, "left_out"))
        runs = _runs(_of_phase(cells), calibration)
        capacity = capacity_of(cells)
    except UnknownRow as error:
        return JudgedReport(source=source, label=label, outcome=outcome, verdict=Verdict.REFUSED, why=str(error))
    required = [margin.required_bytes(run, predict(run)) for run in runs]
    least, most = min(required), max(required)
    verdict = Verdict.FITS if most <= capacity else Verdict.FAILS if least > capacity else Verdict.UNDECIDED
    return JudgedReport(
        source=source,
        label=label,
        outcome=outcome,
        verdict=verdict,
        capacity_bytes=capacity,
        required_bytes=(least, most),
        explanation=explanation,
        settings=tuple(sorted((name, value) for name, value in cells.items() if name not in _BESIDE_SETTINGS)),
    )


def _of_phase(cells: Cells) -> Cells:
    """``cells`` without what the report says nothing of. Raises UnknownRow where the requirement does not, either."""
    phase = text(cells, "phase", "")
    if not choice(cells, "phase", _PHASES, ""):
        raise UnknownRow("it failed at the end of an epoch, and nothing is required for evaluation")
    only_steps = phase == _STEPS or text(cells, "outcome") == Verdict.FITS.value
    return {**cells, "saves_on_card": "false"} if only_steps else cells


def _runs(cells: Cells, calibration: Calibration) -> Sequence[ModelledRun]:
    """The report once for each combination of what was not recorded.

    With the coefficients that are kept for the release of transformers that its thread tells. Where there are none
    of that release, or they do not cover its model and setting, ``calibration`` stands in. Releases from 4.41 on keep
    more than it has; before 4.31 ``forward`` made no logits fp32, and may keep less.
    """
    release = text(cells, "transformers", "")
    if release:
        with suppress(PermanentError, UnknownRow):
            told = calibration_of_release(release)
            return [run_of(each, told) for each in alternatives(cells)]
    return [run_of(each, calibration) for each in alternatives(cells)]
