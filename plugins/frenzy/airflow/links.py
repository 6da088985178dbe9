"""Links on Frenzy's tasks, below *Extra Links* in Airflow: to the run's page, plans, workers' log and model.

The API server makes them when it is asked, so they are there while a task still waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from frenzy.airflow.identity import identity_of
from frenzy.airflow.operators.operators import (
    DecideOperator,
    LaunchOperator,
    MonitorOperator,
    PlaceOperator,
    ProfileOperator,
    PublishOperator,
)
from frenzy.api import URL_PREFIX, endpoints
from frenzy.core.runs.ledger import RunIdentity

# Airflow compares names and modules only; the class itself would cost the API server the import of Kubernetes' client.
_POD_LAUNCH: Final = type("PodLaunchOperator", (), {"__module__": "frenzy.airflow.operators.pod_operator"})
_ALL: Final = (
    ProfileOperator,
    PlaceOperator,
    LaunchOperator,
    _POD_LAUNCH,
    MonitorOperator,
    DecideOperator,
    PublishOperator,
)
_WITH_WORKERS: Final = (LaunchOperator, _POD_LAUNCH, MonitorOperator, DecideOperator)


def _tab(identity: RunIdentity) -> str:
    run = f"/dags/{quote(identity.dag_id, safe='')}/runs/{quote(identity.run_id, safe='')}"
    return f"{run}/plugin/frenzy_training"


def _plans(identity: RunIdentity) -> str:
    ids = f"dag_id={quote(identity.dag_id, safe='')}&run_id={quote(identity.run_id, safe='')}"
    return f"{URL_PREFIX}/pages/training?{ids}#plans-{identity.run_key}"


class RunLink(BaseOperatorLink):
    """A link by the run that the task belongs to; ``path`` is below the server's root."""

    def __init__(self, label: str, path: Callable[[RunIdentity], str], operators: Sequence[type]) -> None:
        self._label, self._path = label, path
        self.operators = list(operators)  # type: ignore[misc]  # Airflow's own links set it on the class

    @property
    def name(self) -> str:
        return self._label

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}{self._path(identity_of(ti_key))}"


def run_links() -> list[RunLink]:
    """All of them, for the plugin."""
    return [
        RunLink("Training", _tab, _ALL),
        RunLink("Plans", _plans, _ALL),
        RunLink("Worker log", lambda run: endpoints.logs(run.run_key).path, _WITH_WORKERS),
        RunLink("Model", lambda run: endpoints.models(run_key=run.run_key).path, [PublishOperator]),
    ]
