"""Runs side by side: best first by what all of them have, with the fields in which they differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract import values

from frenzy.core.runs.comparison import Trial, compared
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView

LOSSES = {"a": 3.0, "b": 1.0, "c": 2.0}


def view(name: str, state: JobState = JobState.SUCCEEDED, *, loss: float | None = None) -> RunView:
    run = values.run(name)
    training = replace(run.job.training, learning_rate=LOSSES.get(name, 0.5) / 1000)
    run = replace(run, state=state, job=replace(run.job, name=name, training=training))
    attempt = replace(values.attempt(run.run_key), last_step=10, last_loss=loss)
    return RunView(run=run, attempts=(attempt,))


def of(views: list[RunView], scores: dict[str, float], **models: str) -> tuple[Trial, ...]:
    """The comparison; scores and models by the names of the jobs."""
    keys = {each.run.job.name: each.run.run_key for each in views}
    evaluations = {keys[name]: {"loss": loss, "perplexity": 2 * loss} for name, loss in scores.items() if name in keys}
    return compared(views, evaluations, {keys[name]: path for name, path in models.items()})


def test_the_lowest_loss_of_the_evaluations_is_first() -> None:
    trials = of([view(each, loss=9.0) for each in LOSSES], LOSSES, b="/models/b")
    assert [(each.rank, each.job, each.loss, each.perplexity) for each in trials] == [
        (1, "b", 1.0, 2.0),
        (2, "c", 2.0, 4.0),
        (3, "a", 3.0, 6.0),
    ]
    assert [each.model for each in trials] == ["/models/b", None, None]


def test_where_one_finished_run_was_not_evaluated_all_are_compared_by_their_last_step() -> None:
    trials = of([view("a", loss=1.5), view("b", loss=2.5)], {"b": 0.1})
    assert [(each.job, each.loss, each.perplexity) for each in trials] == [("a", 1.5, None), ("b", 2.5, None)]


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_run_without_a_loss_and_one_that_failed_come_last_without_a_rank(loss: float | None) -> None:
    failed = view("failed", JobState.FAILED, loss=0.1)
    trials = of([failed, view("c", loss=loss), view("b", loss=2.0)], {})
    assert [(each.rank, each.job, each.loss) for each in trials] == [
        (1, "b", 2.0),
        (None, "failed", None),
        (None, "c", None),
    ]
    assert trials[1].state is JobState.FAILED


def test_only_the_fields_that_differ_are_shown() -> None:
    trials = of([view("a"), view("b")], LOSSES)
    assert [dict(each.settings) for each in trials] == [
        {"training.learning_rate": 0.001},
        {"training.learning_rate": 0.003},
    ]


def test_values_of_the_environment_are_not_shown() -> None:
    views = []
    for each in (view("a"), view("b")):
        job = replace(each.run.job, env={"TOKEN": each.run.job.name})
        views.append(replace(each, run=replace(each.run, job=job)))
    assert all("env.TOKEN" not in trial.settings for trial in of(views, LOSSES))


def test_nothing_is_compared_where_there_is_nothing() -> None:
    assert of([], {}) == ()
