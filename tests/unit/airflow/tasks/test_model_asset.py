"""What an Asset's event says of the finished model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.contract import values

from frenzy.airflow.tasks.model_asset import model_facts
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import AttemptMemory, MemoryView
from frenzy.core.values.job import ValidationSpec
from frenzy.core.values.prepared_data import PreparedData
from frenzy.core.values.telemetry import fold_steps

PATH = "s3://runs/one/model"


def view(**changes: Any) -> RunView:
    run = values.run(state=JobState.SUCCEEDED)
    job = replace(run.job, validation=ValidationSpec(every_steps=1, **changes))
    attempts = tuple(replace(values.attempt(run.run_key, at), last_step=9, last_loss=1.5) for at in (1, 2))
    return RunView(run=replace(run, job=job), attempts=attempts)


def curves(of: RunView, *attempts: tuple[float | None, ...]) -> MemoryView:
    """A step for each validation loss."""
    run = of.run
    return MemoryView(
        run_key=run.run_key,
        job_name=run.job.name,
        state=run.state,
        attempts=tuple(
            AttemptMemory(
                attempt=number,
                plan_id="p",
                num_gpus=1,
                predicted_peak_bytes=1,
                required_bytes=1,
                capacity_bytes=1,
                growth_step=None,
                outcome=None,
                steps=fold_steps(
                    tuple(
                        replace(values.step_record(step), validation_loss=loss) for step, loss in enumerate(losses, 1)
                    )
                ),
            )
            for number, losses in enumerate(attempts, 1)
        ),
    )


def test_the_event_has_place_metrics_and_data_of_the_model() -> None:
    of = view()
    prepared = PreparedData(
        shards="a" * 32, tokenizer="b" * 32, digest="c" * 32, num_tokens=9, num_train=1, num_validation=1, total_steps=9
    )
    facts = model_facts(replace(of, run=replace(of.run, prepared=prepared)), curves(of, (3.0,), (2.5, None, 2.0)), PATH)
    assert facts == {
        "run_key": of.run.run_key,
        "job": "example",
        "path": PATH,
        "steps": 9,
        "loss": 1.5,
        "validation_loss": 2.0,
        "perplexity": math.exp(2.0),
        "data_digest": "c" * 32,
        "plan": of.attempts[-1].plan.plan_id,
        "attempts": 2,
        "reschedules": 0,
    }


@pytest.mark.parametrize(
    ("attempts", "told"),
    [
        (((3.0, 1.0, 2.0),), 1.0),
        (((3.0, math.nan, 1.0),), 1.0),
        (((3.0, 2.0, 1.95),), 2.0),  # no improvement for the trainer
        (((3.0, 1.0), (3.0, 2.5)), 2.5),  # the second attempt began anew
        (((None,),), None),
    ],
)
def test_of_the_best_model_the_loss_that_the_trainer_kept_it_for_is_told(
    attempts: tuple[tuple[float | None, ...], ...], told: float | None
) -> None:
    of = view(keep_best=True, final_model="best", min_improvement=0.1)
    assert model_facts(of, curves(of, *attempts), PATH)["validation_loss"] == told


@pytest.mark.parametrize("losses", [(), (None,), (float("nan"),), (2.0, None), (float("inf"),), (1e4,)])
def test_without_a_validation_or_after_one_that_diverged_no_figure_is_told(losses: tuple[float | None, ...]) -> None:
    facts = model_facts(view(), curves(view(), losses), PATH)
    assert (facts["validation_loss"], facts["perplexity"]) == (None, None)
    assert json.dumps(facts, allow_nan=False)
    assert model_facts(view(), None, PATH)["perplexity"] is None
