"""Who is told of a long wait, a move, a shortage of memory and the end; that nobody can be fails nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, TaskDeferred
from airflow.triggers.base import TriggerEvent
from tests.unit.airflow.conftest import World
from tests.unit.airflow.operators.test_operators import TASKS, ended, started

from frenzy import Notifiers
from frenzy.airflow.operators.notifiers import NoNotifiersError, notifiers_at
from frenzy.airflow.operators.operators import DecideOperator, PlaceOperator
from frenzy.airflow.triggers.triggers import PlaceTrigger

Run = Callable[[Any], Any]


class Message(BaseNotifier):
    """Keeps what it is told, rendered as a message of Airflow's notifiers is."""

    template_fields = ("text",)

    def __init__(self, text: str, kept: list[str]) -> None:
        super().__init__()
        self.text, self.kept = text, kept

    def notify(self, context: Any) -> None:
        self.kept.append(self.text)


def every(kept: list[str]) -> Notifiers:
    def of(moment: str) -> list[Message]:
        return [Message(f"{moment}: {{{{ frenzy.job }}}} attempt {{{{ frenzy.attempt }}}}", kept)]

    return Notifiers(
        waiting_long=of("long"), moved=of("moved"), out_of_memory=of("memory"), ended=of("ended"), long_s=0.0
    )


@pytest.mark.parametrize(
    ("exit_code", "told"),
    [
        (0, ["ended: job attempt 1"]),
        (99, ["ended: job attempt 1"]),
        (98, ["moved: job attempt 1"]),
        (96, ["memory: job attempt 1", "moved: job attempt 1"]),
    ],
)
def test_what_follows_after_an_attempt_is_told(world: World, exit_code: int, told: list[str]) -> None:
    spec, context = started(world)
    ended(world, spec, exit_code)
    kept: list[str] = []
    task = DecideOperator(task_id="decide", attempt_tasks=TASKS, notifiers=every(kept))
    with contextlib.suppress(AirflowRescheduleException, AirflowFailException):
        task.execute(context)
    assert kept == told


def test_a_notifier_that_fails_fails_nothing_else(world: World) -> None:
    def broken(context: Any) -> None:
        raise OSError("no route to the pager")

    spec, context = started(world)
    ended(world, spec, 0)
    kept: list[str] = []
    told = Notifiers(ended=[broken, lambda context: kept.append(context["frenzy"]["state"])])
    result = DecideOperator(task_id="decide", attempt_tasks=TASKS, notifiers=told).execute(context)
    assert (result["reason"], kept) == ("COMPLETED", ["SUCCEEDED"])


INSTALLED = Notifiers(ended=[lambda context: KEPT.append(context["frenzy"]["job"])])
KEPT: list[str] = []


@pytest.mark.parametrize(
    ("own", "path", "told"),
    [
        (None, f"{__name__}:INSTALLED", ["job"]),
        (Notifiers(), f"{__name__}:INSTALLED", []),
        (None, f"{__name__}:KEPT", []),
        (None, "no.such.module:told", []),
    ],
)
def test_a_training_without_notifiers_has_those_of_the_installation_if_they_can_be_had(
    world: World, monkeypatch: pytest.MonkeyPatch, own: Notifiers | None, path: str, told: list[str]
) -> None:
    monkeypatch.setenv("FRENZY_NOTIFIERS", path)
    KEPT.clear()
    spec, context = started(world)
    ended(world, spec, 0)
    result = DecideOperator(task_id="decide", attempt_tasks=TASKS, notifiers=own).execute(context)
    assert (result["reason"], KEPT) == ("COMPLETED", told)


def test_notifiers_whose_module_leaves_python_keep_nothing_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaves_python.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NoNotifiersError, match="SystemExit: 3"):
        notifiers_at("leaves_python:told")


def test_a_long_wait_is_told_once_and_goes_on(world: World, run_async: Run) -> None:
    view = world.waiting()
    kept: list[str] = []
    task = PlaceOperator(task_id="place", notifiers=every(kept))
    context = world.context("train.place", view.run.identity)
    with pytest.raises(TaskDeferred) as first:
        task.execute(context)
    trigger = first.value.trigger
    assert trigger.serialize()[1]["notice_after_s"] == 0.0
    event = run_async(anext(aiter(trigger.run())))
    assert isinstance(event, TriggerEvent) and event.payload == {"waiting_s": 0.0}
    with pytest.raises(TaskDeferred) as again:
        task.resume(context, event.payload)
    assert kept == [f"long: {view.run.job.name} attempt None"]
    assert isinstance(again.value.trigger, PlaceTrigger) and again.value.trigger.notice_after_s is None
