"""All that is published about the models' accuracy, in one value."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from frenzy.adapters.calibration_file import default_calibration
from frenzy.evaluation.accuracy import AccuracyReport, Bar, accuracy_report, at_most
from frenzy.evaluation.datasets import release_calibrations
from frenzy.evaluation.margin import Margin, is_fitted
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import Outcome, PublishedRow
from frenzy.evaluation.score import Errors, ScoredRow, scored_rows
from frenzy.settings import CHECKOUT
from tools.accuracy.datasets.formats import ALL_FORMATS
from tools.accuracy.expert_load import ExpertLoads, expert_loads
from tools.accuracy.learning import LearningCurve, Triple, learning_curve
from tools.accuracy.own_card import OwnRow, own_rows
from tools.accuracy.peers import PEERS, full_run
from tools.accuracy.public_reports import JudgedReport, read_reports
from tools.accuracy.thread_remedies import ThreadRemedy, thread_remedies
from tools.accuracy.throughput import ThroughputReport, score_throughput
from tools.accuracy.traced import PlayedRow, played_reserved, read_traced, traced_errors
from tools.accuracy.wider import WiderMargin, wider_margins

DATA: Final = CHECKOUT / "tests/data/memory"
_REPORTS: Final = "reports/public_reports.csv"
_TRACE_BAR: Final = 0.01
_MARGIN_STEP: Final = 0.05
_MOST_MARGIN: Final = 1.0
_EXPLAINED: Final = ("dataset", "explanation", "source")

# By data set and estimate.
PeerErrors = Mapping[str, Mapping[str, Errors]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedReport:
    """The report that users get, and what only the page tells.

    peers: errors of other published estimates, and of this model on the same rows. traced: errors of
    trace mode on the rows it was run on. played: torch's allocator on the same rows. learning: what
    five runs of each group teach about its other runs. speed: the time model's score. deepspeed_gpu_rows:
    rows that DeepSpeed ran on a GPU.
    reserved_as_peak: errors of those whose reserved memory alone is known, with the peak as a point.
    reports: public reports of runs that fitted or did not. remedies: what the planner answers to some of
    them. wider: what more than the requirement would buy and cost. explanations: what is known of worst rows.
    own: rows that the project measured on a card.
    """

    memory: AccuracyReport
    bars: tuple[Bar, ...]
    peers: PeerErrors
    traced: Errors
    played: Sequence[PlayedRow]
    learning: LearningCurve | None
    speed: ThroughputReport
    experts: ExpertLoads
    hooked_share: float
    deepspeed_gpu_rows: int
    reserved_as_peak: Errors
    reports: Sequence[JudgedReport]
    remedies: Sequence[ThreadRemedy]
    wider: Sequence[WiderMargin]
    explanations: Sequence[Explanation]
    own: Sequence[OwnRow]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a data set's worst rows are off. source: where that stands."""

    dataset: str
    text: str
    source: str


def read_explanations(path: Path) -> Sequence[Explanation]:
    """Every explanation of the file, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(Explanation(*(row[name] for name in _EXPLAINED)) for row in csv.DictReader(file))


def published_report(folder: Path = DATA) -> PublishedReport:
    """Read and score every data set in ``folder``."""
    memory = accuracy_report(sorted(folder.glob("*.csv")), release_calibrations(), ALL_FORMATS)
    scored = scored_rows(memory.rows, memory.margin)
    reports = read_reports(folder / _REPORTS, default_calibration(), memory.margin)
    rows_traced = read_traced(folder)
    traced = Errors.of(traced_errors(memory.rows, rows_traced))
    return PublishedReport(
        memory=memory,
        bars=(*memory.bars, at_most("grade A, worst error of trace mode", traced.worst, "share", _TRACE_BAR)),
        peers=_peers(scored),
        traced=traced,
        played=played_reserved(memory.rows, rows_traced),
        learning=learning_curve(_triples(scored)),
        speed=score_throughput(folder),
        experts=expert_loads(memory.rows),
        hooked_share=fit_margin(memory.rows, replace(Margin(), hooked_share=0.0)).hooked_share,
        deepspeed_gpu_rows=sum(each.framework.startswith("DeepSpeed") and each.run is not None for each in memory.rows),
        reserved_as_peak=_reserved_as_peak(scored),
        reports=reports,
        remedies=thread_remedies(folder / _REPORTS, default_calibration()),
        wider=wider_margins(reports, scored),
        explanations=read_explanations(folder / "reports/worst_rows.csv"),
        own=own_rows(folder, default_calibration()),
    )


def fit_margin(rows: Sequence[PublishedRow], start: Margin) -> Margin:
    """``start`` with the least hooked share that refuses every fitted run that ran out of memory."""
    failed = [each for each in rows if each.run and each.outcome is Outcome.OUT_OF_MEMORY and is_fitted(each)]
    predictions = [(each, predict(each.run)) for each in failed if each.run]
    margin, share = start, 0.0
    while share < _MOST_MARGIN:
        margin = replace(start, hooked_share=share)
        if all(margin.required_bytes(row.run, found) > row.capacity_bytes for row, found in predictions if row.run):
            break
        share = round(share + _MARGIN_STEP, 2)
    return margin


def _reserved_as_peak(scored: Iterable[ScoredRow]) -> Errors:
    """Of DeepSpeed's scored rows of which only reserved memory is known, with the peak as a point."""
    rows = [each for each in scored if each.row.dataset == "deepspeed-reserved" and not is_fitted(each.row)]
    return Errors.of([each.error_of_peak for each in rows if each.error_of_peak is not None])


def _peers(scored: Iterable[ScoredRow]) -> PeerErrors:
    """The formulas of others, and this model on the same rows; of data sets that have any."""
    found: dict[str, dict[str, list[float]]] = {}
    for each in scored:
        full = full_run(each.row.run) if each.row.run else None
        if each.error_of_peak is None or full is None:
            continue
        errors = found.setdefault(each.row.dataset, {name: [] for name in ("this model", *PEERS)})
        errors["this model"].append(each.error_of_peak)
        for name, formula in PEERS.items():
            errors[name].append(formula(full) / (each.measured_bytes or 1) - 1.0)
    return {name: {peer: Errors.of(values) for peer, values in own.items()} for name, own in found.items()}


def _triples(scored: Iterable[ScoredRow]) -> list[Triple]:
    """(group, predicted, measured) of every run that has a measurement."""
    return [
        (f"{each.row.dataset}/{each.row.group}", each.prediction.peak_allocated_bytes, each.measured_bytes)
        for each in scored
        if each.measured_bytes and each.row.outcome is Outcome.RAN
    ]
