"""Airflow's own statistics carry the metrics, where it sends any."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from airflow.sdk.observability import stats
from tests.unit.airflow.conftest import World

from frenzy.airflow.connection import api_client
from frenzy.airflow.tasks.statistics import send_statistics

log = logging.getLogger(__name__)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, dict[str, str]]]:
    found: list[tuple[str, float, dict[str, str]]] = []

    def keep(name: str, value: float, *, tags: Any) -> None:
        found.append((name, value, tags))

    monkeypatch.setattr(stats, "gauge", keep)
    return found


def test_each_value_is_sent_with_its_labels(
    world: World, sent: list[tuple[str, float, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    world.placed()
    send_statistics(api_client(), log)
    names = {name for name, _, _ in sent}
    assert {"frenzy_gpus", "frenzy_predicted_peak_bytes", "frenzy_oom_total", "frenzy_pass_seconds"} <= names
    gpus = [(value, set(tags)) for name, value, tags in sent if name == "frenzy_gpus"]
    assert sum(value for value, _ in gpus) == 4
    assert all(labels == {"gpu_type", "state"} for _, labels in gpus)


def test_nothing_is_asked_for_where_airflow_sends_no_statistics(
    world: World, sent: list[tuple[str, float, dict[str, str]]]
) -> None:
    send_statistics(api_client(), log)
    assert sent == []
