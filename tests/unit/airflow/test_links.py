"""Each task of a training leads to its run's page and plans, its workers' log and its model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from frenzy.airflow.links import run_links
from frenzy.airflow.operators.operators import LaunchOperator, ProfileOperator, PublishOperator
from frenzy.airflow.operators.pod_operator import PodLaunchOperator
from frenzy.core.runs.ledger import RunIdentity

KEY = SimpleNamespace(task_id="train.launch", dag_id="job/1", run_id="manual__1+00:00", map_index=-1)
RUN = RunIdentity(dag_id="job/1", run_id="manual__1+00:00", task_group="train")


def links_of(operator: type) -> dict[str, str]:
    """By Airflow's own rule: names and modules are compared."""
    names = (operator.__name__, operator.__module__)
    return {
        each.name: each.get_link(None, ti_key=KEY)
        for each in run_links()
        if names in [(known.__name__, known.__module__) for known in each.operators]
    }


@pytest.mark.parametrize("operator", [LaunchOperator, PodLaunchOperator])
def test_a_launch_leads_to_its_run_s_tabs_and_to_the_workers_log(operator: type) -> None:
    found = links_of(operator)
    assert set(found) == {"Training", "Plans", "Worker log"}
    query = "dag_id=job%2F1&run_id=manual__1%2B00%3A00"
    assert found["Plans"].endswith(f"/frenzy/pages/training?{query}#plans-{RUN.run_key}")
    assert found["Training"].endswith("/dags/job%2F1/runs/manual__1%2B00%3A00/plugin/frenzy_training")
    assert found["Worker log"].endswith(f"/frenzy/api/v1/runs/{RUN.run_key}/logs")


def test_the_model_is_where_it_is_published_and_no_log_before_there_are_workers() -> None:
    assert links_of(PublishOperator)["Model"].endswith(f"/frenzy/api/v1/models?run_key={RUN.run_key}")
    assert "Worker log" not in links_of(ProfileOperator)
