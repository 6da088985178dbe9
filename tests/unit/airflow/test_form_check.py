"""A form of ``frenzy_train`` that stands for no job makes no run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import event

from frenzy.airflow.form_check import check_forms, refuse_bad_form


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    check_forms()
    yield
    event.remove(DagRun, "init", refuse_bad_form)


def made(by: DagRunTriggeredByType = DagRunTriggeredByType.UI, dag_id: str = "frenzy_train", **conf: Any) -> DagRun:
    return DagRun(dag_id=dag_id, run_id="manual__1", conf=conf, triggered_by=by)


def test_a_name_alone_is_refused_with_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"^Refused: 1 field\. data.path: nothing is refused; required: "):
        made(name="mine", preset="none")


def test_all_that_is_wrong_is_told_at_once() -> None:
    wrong = {"training__warmup_steps": 10**5, "training__max_steps": 10, "data__path": "words.txt"}
    with pytest.raises(ValueError, match=r"^Refused: 2 fields\. ") as caught:
        made(name="mine", preset="none", **wrong)
    for field in ("training.warmup_steps", "model"):
        assert field in str(caught.value)


def test_what_contradicts_a_preset_is_refused_and_a_preset_with_a_name_is_not() -> None:
    assert made(name="mine", preset="tiny-shakespeare").conf["name"] == "mine"
    with pytest.raises(ValueError, match="warmup_steps"):
        made(name="mine", preset="tiny-shakespeare", training__warmup_steps=10**6)


def test_runs_of_other_dags_and_those_that_tasks_start_are_left_alone() -> None:
    assert made(dag_id="another", name="mine").dag_id == "another"
    assert made(DagRunTriggeredByType.OPERATOR, name="mine").dag_id == "frenzy_train"


def test_a_preset_that_is_not_on_this_machine_is_left_to_the_task() -> None:
    assert made(name="mine", preset="gone").dag_id == "frenzy_train"
