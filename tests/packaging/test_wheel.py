"""The wheel in a clean Airflow, run from an empty folder: nothing needs the repository."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.packaging.conftest import Installed

from frenzy.cli.embedded.installation import DB_MANAGER
from frenzy.settings import CHECKOUT

_JOB = """
name: words
model:
  config: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 2, vocab_size: 264, n_positions: 64}
data: {path: words.txt, sequence_length: 32}
training: {max_steps: 10, global_batch_size: 4}
"""
# What the wheel's own interpreter finds, in one process, since importing Airflow takes seconds.
_LOOK = """
import json, os, sys
import frenzy
from airflow import plugins_manager, settings
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
from fastapi import FastAPI
from fastapi.testclient import TestClient
from frenzy.adapters.calibration_file import calibrated_releases, default_calibration
from frenzy.settings import CHECKOUT, Settings, load_settings
from frenzy.sim.clusters import cluster_named
from frenzy.sim.traces import load_trace
from frenzy.core.runs.access import Caller
from frenzy.web.application import create_app


class Visitor:
    caller = Caller(name="visitor")

    def may_visit(self):
        return True


settings.initialize()
plugins, errors = plugins_manager._get_plugins()
bag = DagBag(str(load_settings(os.environ).dags_folder))
pages = TestClient(create_app(lambda: None, Visitor))
default_calibration()
print(json.dumps({
    "places": [frenzy.__file__, str(CHECKOUT), *(each for each in sys.path if each)],
    "home": str(Settings().home),
    "plugins": [each.name for each in plugins],
    "plugin_errors": errors,
    "providers": {name: info.version for name, info in ProvidersManager().providers.items()},
    "policies": [name for name, _ in settings.get_policy_plugin_manager().list_name_plugin()],
    "dags": sorted(bag.dags),
    "dag_errors": bag.import_errors,
    "releases": list(calibrated_releases()),
    "arrivals": len(load_trace("philly-160-1").arrivals),
    "nodes": len(cluster_named("64").nodes),
    "pages": {path: pages.get(path).status_code for path in ("/static/page.js", "/static/frenzy.css")},
}))
"""


@pytest.fixture(scope="module")
def place(installed: Installed) -> Path:
    """An installation made by the wheel's own command."""
    installed.run("frenzy", "init", "here")
    return installed.folder / "here"


@pytest.fixture(scope="module")
def variables(installed: Installed, place: Path) -> dict[str, str]:
    """What a shell has after reading the installation's settings."""
    told = installed.run("sh", "-c", f"set -a; . '{place}/frenzy.env'; set +a; env -0")
    pairs = (line.split("=", 1) for line in told.split("\0") if line)
    return {name: value for name, value in pairs if name.startswith(("FRENZY_", "AIRFLOW"))}


@pytest.fixture(scope="module")
def found(installed: Installed, variables: dict[str, str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        installed.run(str(installed.python), "-W", "ignore", "-c", _LOOK, **variables).splitlines()[-1]
    )
    return answer


def test_the_wheel_carries_what_lies_outside_the_package_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("dags", "include"):
        wanted = {
            f"frenzy/checkout/{path.relative_to(CHECKOUT)}"
            for path in (CHECKOUT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert wanted <= names
    assert {f"frenzy/checkout/docs/{each.name}" for each in (CHECKOUT / "docs").glob("*.md")} <= names
    package = CHECKOUT / "plugins/frenzy"
    files = [each for each in package.rglob("*") if each.is_file() and each.suffix != ".pyc"]
    assert {f"frenzy/{each.relative_to(package)}" for each in files} <= names
    assert not [name for name in names if not name.startswith(("frenzy/", "frenzy_airflow-"))]


def test_nothing_comes_from_the_checkout(found: dict[str, Any], installed: Installed) -> None:
    assert not [each for each in found["places"] if Path(each).is_relative_to(CHECKOUT / "plugins")]
    assert found["home"] == str(installed.folder / ".frenzy")


def test_airflow_finds_plugin_provider_and_policy(found: dict[str, Any]) -> None:
    assert found["plugin_errors"] == {}
    assert "frenzy" in found["plugins"]
    assert "frenzy-airflow" in found["providers"]
    assert "frenzy" in found["policies"]


def test_all_dags_load(found: dict[str, Any]) -> None:
    assert found["dag_errors"] == {}
    assert found["dags"] == [
        "example_etl_then_train",
        "example_sweep",
        "frenzy_reconcile",
        "frenzy_train",
        "job_tiny-shakespeare",
    ]


def test_calibrations_traces_clusters_and_pages_are_there(found: dict[str, Any]) -> None:
    assert found["releases"]
    assert found["arrivals"] == 160
    assert found["nodes"] > 0
    assert set(found["pages"].values()) == {200}


def test_airflow_makes_the_ledgers_tables(installed: Installed, variables: dict[str, str], place: Path) -> None:
    assert variables["AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS"] == DB_MANAGER
    installed.run("airflow", "db", "migrate", **variables)
    with closing(sqlite3.connect(place / "airflow.db")) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"frenzy_lease", "frenzy_held_slot", "task_instance"} <= names


def test_a_job_is_planned(installed: Installed) -> None:
    (installed.folder / "words.txt").write_text("to be or not to be\n" * 200, encoding="utf-8")
    (installed.folder / "words.yaml").write_text(_JOB, encoding="utf-8")
    plan = json.loads(installed.run("frenzy", "plan", "words.yaml", "--json"))
    assert plan["refusal"] is None
    assert any(each["rank"] == 1 for each in plan["candidates"])


@pytest.mark.parametrize("verb", ["--help", "simulate", "init"])
def test_the_command_helps(installed: Installed, verb: str) -> None:
    asked = (verb,) if verb.startswith("--") else (verb, "--help")
    assert "Usage: frenzy" in installed.run("frenzy", *asked)
