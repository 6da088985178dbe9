"""How near the time model comes to published training speeds, and whether it ranks plans as they ran.

Two questions: the relative error of the step time, for each data set and for the fitted and the
scored part apart; and, among runs that share model, GPUs and global batch, how much slower the
plan that the model prefers ran than the best published one. Rankings use scored rows alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from frenzy.core.memory.model_inputs import Array
from frenzy.core.planning.throughput import step_seconds
from frenzy.core.values.utilisation import Software, utilisation
from tools.accuracy.throughput_fit import parts_of
from tools.accuracy.throughput_rows import SPLIT, PublishedRun, PublishedRuns, published_runs

# A choice this near to the best published run counts as right.
_NEAR_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedErrors:
    """Relative errors of predicted step times, as shares; positive: predicted slower than measured."""

    num_runs: int
    median: float
    p90: float
    worst: float
    signed_median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingQuality:
    """How good the model's first choice is among the runs of one question.

    num_questions: with at least two scored runs of different plans. num_near: the choice ran within
    ``near_share`` of the best. Regrets are shares of time lost against the best published run.
    chance_regret: median regret of a plan taken at random.
    """

    num_questions: int
    num_near: int
    near_share: float
    median_regret: float
    worst_regret: float
    chance_regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRun:
    identity: str
    predicted_step_s: float
    measured_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpeed:
    """One data set: errors of both parts, ranking, rows left out by reason, and the scored rows furthest off."""

    dataset: str
    fitted: SpeedErrors | None
    scored: SpeedErrors | None
    ranking: RankingQuality | None
    left_out: tuple[tuple[str, int], ...]
    worst: tuple[WorstRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputReport:
    """Every data set; split: how rows were assigned to the fitted and the scored part."""

    datasets: tuple[DatasetSpeed, ...]
    split: str = SPLIT


def score_throughput(folder: Path) -> ThroughputReport:
    """Score the time model on every throughput table in ``folder`` (tables that are missing are left out)."""
    return ThroughputReport(datasets=tuple(_score(each) for each in published_runs(folder)))


def predicted_step_s(runs: Sequence[PublishedRun]) -> Array:
    """Predicted seconds of a step of each run, with the shares of the software it was measured with."""
    return np.asarray([_predicted(run, run.software) for run in runs], dtype=np.float64)


def _predicted(run: PublishedRun, software: Software) -> float:
    return float(step_seconds(parts_of([run]), utilisation(run.gpu, software))[0])


def _score(found: PublishedRuns) -> DatasetSpeed:
    predicted = predicted_step_s(found.runs)
    pairs = [(run, float(step_s)) for run, step_s in zip(found.runs, predicted, strict=True)]
    scored = [pair for pair in pairs if not pair[0].is_fitted]
    return DatasetSpeed(
        dataset=found.dataset,
        fitted=_errors([pair for pair in pairs if pair[0].is_fitted]),
        scored=_errors(scored),
        ranking=_ranking(scored),
        left_out=found.left_out,
        worst=_worst(scored),
    )


_Pairs = Sequence[tuple[PublishedRun, float]]


def _errors(pairs: _Pairs) -> SpeedErrors | None:
    if not pairs:
        return None
    signed = np.asarray([step_s / run.step_s - 1 for run, step_s in pairs])
    size = np.abs(signed)
    return SpeedErrors(
        num_runs=len(pairs),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        worst=float(size.max()),
        signed_median=float(np.median(signed)),
    )


def _worst(pairs: _Pairs, most: int = 5) -> tuple[WorstRun, ...]:
    ordered = sorted(pairs, key=lambda pair: (-abs(np.log(pair[1] / pair[0].step_s)), pair[0].identity))
    return tuple(
        WorstRun(identity=run.identity, predicted_step_s=step_s, measured_step_s=run.step_s)
        for run, step_s in ordered[:most]
    )


def _ranking(pairs: _Pairs) -> RankingQuality | None:
    regrets, by_chance = [], []
    for group in _questions(pairs):
        best = min(run.step_s for run, _ in group)
        chosen, _ = min(group, key=lambda pair: (pair[1], pair[0].identity))
        regrets.append(chosen.step_s / best - 1)
        by_chance.append(float(np.mean([run.step_s / best - 1 for run, _ in group])))
    if not regrets:
        return None
    return RankingQuality(
        num_questions=len(regrets),
        num_near=sum(each <= _NEAR_SHARE for each in regrets),
        near_share=_NEAR_SHARE,
        median_regret=float(np.median(regrets)),
        worst_regret=max(regrets),
        chance_regret=float(np.median(by_chance)),
    )


def _questions(pairs: _Pairs) -> Iterable[_Pairs]:
    """Runs by question, one for each plan: the fastest where a plan was run more than once."""
    by_question: dict[str, dict[PublishedRun, tuple[PublishedRun, float]]] = defaultdict(dict)
    for run, step_s in pairs:
        plan = replace(run, identity="", step_s=0.0)
        known = by_question[run.question].get(plan)
        if known is None or run.step_s < known[0].step_s:
            by_question[run.question][plan] = (run, step_s)
    return [tuple(plans.values()) for plans in by_question.values() if len(plans) > 1]
