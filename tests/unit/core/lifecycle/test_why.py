"""The passage on top of a run's page: what was chosen, what changed, what was lost, what to do."""

from __future__ import annotations

import pytest
from tests.unit.app.conftest import airflow as airflow
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.queries import run_view
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.protocol import EndReport
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.units import MIB

OUT_OF_SPACE = 85


def why(run: Airflow) -> str:
    return run_view(run.services, run.key).why


def test_a_job_under_way_names_its_gpus_and_their_memory(airflow: Airflow) -> None:
    airflow.begun()
    assert why(airflow).startswith("Attempt 1 has ")
    assert "on each GPU" in why(airflow)


def test_a_job_that_waits_says_what_would_start_it(airflow: Airflow) -> None:
    for name in ("one", "two", "three", "four", "five"):
        waiting = airflow.submitted(make_job(name))
    view = run_view(waiting.services, waiting.key)
    assert view.queue_entry is not None
    assert view.queue_entry.hold is not None
    assert view.queue_entry.hold.sentence in view.why


@pytest.mark.parametrize(("last", "saved", "said"), [(50, 48, "2 steps are made again"), (50, 50, "no step is lost")])
def test_a_move_says_why_and_what_it_cost(airflow: Airflow, last: int, saved: int, said: str) -> None:
    airflow.begun()
    airflow.press(1, extra=200 * MIB, number=saved)
    airflow.step(1, last)
    airflow.end(1, OUT_OF_SPACE, last_step=saved)
    airflow.decide()
    airflow.place()
    assert "Attempt 1 ended at step" in why(airflow)
    assert said in why(airflow)


def test_a_worker_s_words_are_a_sentence_of_their_own(airflow: Airflow) -> None:
    airflow.begun()
    result = AttemptResult(exit_code=1, last_step=5, total_steps=100, detail="ValueError: the model has 1,000 tokens")
    end_attempt(airflow.services, airflow.key, 1, EndReport(result=result))
    airflow.decide()
    airflow.place()
    assert "the model has 1,000 tokens. Attempt 2" in why(airflow)


def test_a_run_that_is_done_says_how_far_it_came(airflow: Airflow) -> None:
    airflow.begun()
    airflow.end(1, 0, last_step=100)
    airflow.decide()
    assert (
        why(airflow)
        == "It has trained 100 steps in one attempt, at the end on "
        + run_view(airflow.services, airflow.key).attempts[-1].plan.plan_id
        + "."
    )
