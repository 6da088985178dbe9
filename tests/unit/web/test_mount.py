"""What Airflow gets from the plugin: the app only where it is served, the views where they belong."""

from __future__ import annotations

import pytest

from frenzy.web.mount import external_views, serves_api


@pytest.mark.parametrize(
    ("argv", "serves"),
    [
        (["/bin/airflow", "api-server"], True),
        (["/site-packages/airflow/__main__.py", "api-server", "--port", "1"], True),
        (["/bin/airflow", "standalone"], True),
        (["/bin/gunicorn", "airflow.api_fastapi.main:app"], True),
        (["/bin/airflow", "scheduler"], False),
        (["/bin/airflow", "triggerer"], False),
        (["/bin/airflow", "dag-processor"], False),
        (["/home/fastapi/bin/airflow", "tasks", "run"], False),
        (["/bin/airflow"], False),
        ([], False),
    ],
)
def test_app_is_made_in_the_server_only(argv: list[str], serves: bool) -> None:
    assert serves_api(argv) is serves


def test_views_are_one_run_tab_and_two_nav_pages_below_the_server_s_root() -> None:
    views = external_views("https://host/airflow/")
    assert [(each["name"], each["destination"]) for each in views] == [
        ("Training", "dag_run"),
        ("GPUs", "nav"),
        ("New job", "nav"),
    ]
    assert all(each["href"].startswith("/airflow/frenzy/pages/") for each in views)
    assert views[0]["href"].endswith("?dag_id={DAG_ID}&run_id={RUN_ID}")
    assert [each["nav_top_level"] for each in views] == [False, True, True]
    assert [each["url_route"] for each in views] == ["frenzy_training", "frenzy_gpus", "frenzy_new_job"]


def test_views_of_a_server_at_the_root() -> None:
    assert external_views("")[1]["href"] == external_views("http://host:8080")[1]["href"] == "/frenzy/pages/gpus"
