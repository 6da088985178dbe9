"""Which of a training's tasks come first where a triggerer or an executor has too few places."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from tests.unit.airflow.operators.test_operators import spec_document

from frenzy.airflow.operators.task_group import frenzy_training


def weights(**default_args: Any) -> dict[str, int]:
    """What Airflow makes of each task's weight."""
    with DAG("mine", default_args=default_args) as dag:
        frenzy_training(spec_document("words.txt"))
    tasks = DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_dict.values()
    return {each.task_id.removeprefix("train."): weight(each) for each in tasks}


def weight(task: Any) -> int:
    of_it: Any = SimpleNamespace(task=task)
    return int(task.weight_rule.get_weight(of_it))


@pytest.mark.parametrize("waiting", ["prepare", "place"])
@pytest.mark.parametrize("training", ["launch", "monitor"])
def test_what_trains_comes_before_what_waits(training: str, waiting: str) -> None:
    found = weights()
    assert found[training] > found[waiting]


def test_the_weight_that_a_dags_author_gives_counts() -> None:
    plain, heavy = weights(), weights(priority_weight=7)
    assert heavy == {task: 7 * weight for task, weight in plain.items()}
