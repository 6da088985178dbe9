"""The passage on top of a run's page: what was chosen, what changed, what was lost, what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.app.conftest import airflow as airflow
from tests.unit.app.playing import Airflow, make_job

from frenzy.app.cancellation import cancel
from frenzy.app.observe import report_progress
from frenzy.app.queries import explain, queue_view, run_view
from frenzy.app.settlement import end_attempt
from frenzy.core.lifecycle.why import slow_steps
from frenzy.core.runs.protocol import EndReport, ProgressReport
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.units import MIB

OUT_OF_SPACE = 85


def why(run: Airflow) -> str:
    return run_view(run.services, run.key).why


def test_a_job_under_way_names_its_gpus_and_their_memory(airflow: Airflow) -> None:
    airflow.begun()
    assert why(airflow).startswith("Attempt 1 has ")
    assert "on each GPU" in why(airflow)


def test_steps_that_take_far_longer_than_predicted_are_told_wherever_one_looks(airflow: Airflow) -> None:
    airflow.begun()
    predicted_s = run_view(airflow.services, airflow.key).attempts[-1].plan.step_time_s

    def told(step: int, times: float) -> tuple[bool, ...]:
        report = ProgressReport(last_step=step, step_time_s=times * predicted_s)
        report_progress(airflow.services, airflow.key, 1, report)
        attempt = run_view(airflow.services, airflow.key).attempts[-1]
        lines = explain(airflow.services, airflow.key).lines
        said = f"Steps take {times:.0f} times as long as predicted"
        return tuple(said in each for each in (why(airflow), " ".join(lines), slow_steps(attempt) or ""))

    assert told(2, 45.0) == (False, False, False)
    assert told(9, 45.0) == (True, True, True)
    assert told(10, 1.5) == (False, False, False)


def test_nothing_is_said_of_the_pace_of_a_script_whose_time_is_assumed(airflow: Airflow) -> None:
    airflow.begun()
    slow = replace(run_view(airflow.services, airflow.key).attempts[-1], last_step=9, step_time_s=1e6)
    memory = replace(slow.plan.memory, is_declared=True)
    assert slow_steps(slow) is not None
    assert slow_steps(replace(slow, plan=replace(slow.plan, memory=memory))) is None


def test_before_its_first_step_all_of_a_run_is_still_to_come(airflow: Airflow) -> None:
    airflow.submitted(make_job())
    airflow.clock.advance(600)
    (row,) = queue_view(airflow.services).running
    plan = run_view(airflow.services, row.run_key).attempts[-1].plan
    assert row.expected_end_s == airflow.clock.now_s() + plan.predicted_run_s


def test_a_job_that_waits_says_what_would_start_it(airflow: Airflow) -> None:
    for name in ("one", "two", "three", "four", "five"):
        waiting = airflow.submitted(make_job(name))
    view = run_view(waiting.services, waiting.key)
    assert view.queue_entry is not None
    assert view.queue_entry.hold is not None
    assert view.queue_entry.hold.sentence in view.why


def test_an_attempt_says_why_it_has_a_plan_that_is_not_the_best(airflow: Airflow) -> None:
    runs = [airflow.submitted(make_job(name)) for name in ("one", "two", "three", "four")]
    views = [run_view(each.services, each.key) for each in runs]
    later = [each for each in views if each.attempts and each.run.reason.code is ReasonCode.BEST_PLAN_NOW]
    assert later
    for view in later:
        reason = view.attempts[0].next_attempt.reason
        assert reason.code is ReasonCode.BEST_PLAN_NOW
        assert reason.detail.startswith("First attempt. It is number ")
        assert f"Why this plan: BEST_PLAN_NOW: {reason.detail}" in explain(airflow.services, view.run.run_key).lines


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


def test_a_run_that_was_cancelled_tells_of_its_moves_as_of_the_past(airflow: Airflow) -> None:
    airflow.begun()
    airflow.press(1, extra=200 * MIB, number=50)
    airflow.step(1, 50)
    airflow.end(1, OUT_OF_SPACE, last_step=50)
    airflow.decide()
    airflow.place()
    airflow.launch(2)
    airflow.step(2, 51)
    cancel(airflow.services, airflow.key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    airflow.end(2, 0, last_step=51)
    airflow.decide()
    assert why(airflow).endswith("Attempt 2 went on from step 50; no step was lost.")


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
