"""What is explained of a waiting run: reason, plans and remedy of one decision, that of now."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.app.moving import ScriptedScheduler, on_small
from tests.unit.app.playing import Airflow

from frenzy.app.queries import explain
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.scheduling_facts import Hold, SchedulingFacts

THEN = Reason(code=ReasonCode.WAITING_FOR_QUOTA, detail="Team red was full.", remedy="a larger quota of team red")


def hold_all(facts: SchedulingFacts) -> tuple[Hold, ...]:
    return tuple(Hold(run_key=each.run_key, reason=THEN, position=9) for each in facts.queued)


def held_by_the_last_pass(airflow: Airflow, scheduler: ScriptedScheduler) -> Airflow:
    """A run that the last pass held for what is so no longer."""
    scheduler.script = hold_all
    return replace(airflow, services=replace(airflow.services, schedule=scheduler)).submitted(on_small("held"), "r2")


def test_a_run_that_would_start_now_is_not_said_to_wait(airflow: Airflow, scheduler: ScriptedScheduler) -> None:
    run = held_by_the_last_pass(airflow, scheduler)
    lines = explain(run.services, run.key).lines
    assert any(each.startswith("It would start now as ") and each.endswith(" on a (2).") for each in lines)
    assert not [each for each in lines if each.startswith(("It waits", "It is number", "What would help"))]


def test_why_a_run_waits_is_told_by_the_decision_that_its_other_lines_are_of(
    airflow: Airflow, scheduler: ScriptedScheduler
) -> None:
    airflow.submitted(on_small("first"))
    run = held_by_the_last_pass(airflow, scheduler)
    lines = explain(run.services, run.key).lines
    (why,) = (each for each in lines if each.startswith("It waits: "))
    assert why.startswith("It waits: WAITING_FOR_GPUS: Needs ")
    assert "It is number 1 in the queue." in lines
    assert lines[-1].startswith("What would help: ")
    assert "red was full" not in "".join(lines)
