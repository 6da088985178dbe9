"""What Airflow gets from the plugin: the app only where it is served, the views where they belong."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from frenzy.web.mount import external_views, serves_api
from frenzy.web.page_files import STATIC_TYPES


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


def test_each_view_has_an_icon_of_its_own_that_stands_out_from_any_ground() -> None:
    names = [each["icon"].removeprefix("/frenzy/static/") for each in external_views("")]
    assert names == ["training.svg", "gpus.svg", "new_job.svg"]
    for name in names:
        assert name in STATIC_TYPES
        drawn = files("frenzy.web").joinpath("static", name).read_text(encoding="utf-8")
        rim, ink = (luminance(each) for each in re.findall(r'stroke="#(\w{6})"', drawn))
        assert (rim + 0.05) / (ink + 0.05) > 4.5
        assert len(set(re.findall(r' d="([^"]+)"', drawn))) == 1, "the rim has the shape of the ink"


def luminance(colour: str) -> float:
    """Of WCAG 2."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_views_of_a_server_at_the_root() -> None:
    assert external_views("")[1]["href"] == external_views("http://host:8080")[1]["href"] == "/frenzy/pages/gpus"
