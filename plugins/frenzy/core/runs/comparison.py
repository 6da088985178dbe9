"""Runs side by side, best first: what they differ in, and how good their models are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.masking import NAMES_ONLY, masked_at
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.codec import encode

_NO_SETTINGS: Final = frozenset({"name", "description"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One of the runs compared.

    rank: from 1; None where there is nothing to rank it by. settings: the fields in which the runs differ, by path;
    values of ``env`` and ``secrets`` are nowhere shown.
    loss: mean over tokens in nats, of the evaluation where every finished run has one, all of them of text that was
    held out or all of text that was not, else of the last step.
    model: the model's folder, where it is known.
    """

    rank: int | None
    job: str
    run_key: str
    state: JobState
    settings: Mapping[str, Any]
    loss: float | None
    perplexity: float | None
    steps: int
    model: str | None


def compared(
    views: Sequence[RunView], evaluations: Mapping[str, Mapping[str, Any]], models: Mapping[str, str | None]
) -> tuple[Trial, ...]:
    """The runs of ``views``, lowest loss first; those that did not succeed, or whose loss is no number, come last.

    evaluations, models: what the evaluation returned, and the model's folder, by run key.
    """
    scores = _scores(views, evaluations)
    settings = _differing({each.run.run_key: dict(_fields(_shown(each))) for each in views})
    ordered = sorted(views, key=lambda each: _order(scores.get(each.run.run_key, _NO_SCORE)))
    return tuple(
        _trial(
            rank,
            view,
            scores.get(view.run.run_key, _NO_SCORE),
            settings=settings[view.run.run_key],
            model=models.get(view.run.run_key),
        )
        for rank, view in enumerate(ordered, start=1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Score:
    loss: float | None = None
    perplexity: float | None = None


_NO_SCORE: Final = _Score()


def _scores(views: Sequence[RunView], evaluations: Mapping[str, Mapping[str, Any]]) -> dict[str, _Score]:
    """Of each run that succeeded: all by their evaluations, or else all by their last steps."""
    finished = [each for each in views if each.run.state is JobState.SUCCEEDED]
    evaluated = {
        each.run.run_key: _Score(loss=_number(found.get("loss")), perplexity=_number(found.get("perplexity")))
        for each in finished
        if (found := evaluations.get(each.run.run_key)) is not None
    }
    held_out = {bool(evaluations[key].get("held_out")) for key in evaluated}
    if len(evaluated) == len(finished) and len(held_out) < 2:
        return evaluated
    return {each.run.run_key: _Score(loss=_number(each.attempts[-1].last_loss)) for each in finished if each.attempts}


def _trial(rank: int, view: RunView, score: _Score, *, settings: Mapping[str, Any], model: str | None) -> Trial:
    return Trial(
        rank=None if score.loss is None else rank,
        job=view.run.job.name,
        run_key=view.run.run_key,
        state=view.run.state,
        settings=settings,
        loss=score.loss,
        perplexity=score.perplexity,
        steps=max((each.last_step for each in view.attempts), default=0),
        model=model,
    )


def _shown(view: RunView) -> Mapping[str, Any]:
    document: Mapping[str, Any] = encode(masked_at(view.run.job, NAMES_ONLY))
    return document


def _order(score: _Score) -> float:
    return math.inf if score.loss is None else score.loss


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _fields(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from _fields(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _differing(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each run the fields that not all have alike."""
    paths = dict.fromkeys(path for each in fields.values() for path in each)
    shown = [
        path
        for path in paths
        if path not in _NO_SETTINGS and len({repr(each.get(path)) for each in fields.values()}) > 1
    ]
    return {run_key: {path: each.get(path) for path in shown} for run_key, each in fields.items()}
