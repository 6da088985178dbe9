"""``frenzy init`` makes a new installation and overwrites nothing."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from tests.unit.cli.conftest import CLUSTER, Said, served

from frenzy.adapters.spec.cluster_file import load_cluster
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.settings import CHECKOUT, LauncherKind, Settings, load_settings

Frenzy = Callable[..., Said]


def sourced(folder: Path) -> dict[str, str]:
    """The variables that a shell has after reading the installation's settings, as the file tells to."""
    command = f"set -a; . {quote(str(folder / 'frenzy.env'))}; set +a; env -0"
    told = subprocess.run(["sh", "-c", command], env={}, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in told.split("\0") if line)


@pytest.mark.parametrize("launcher", LauncherKind)
def test_everything_that_is_made_is_accepted_by_its_reader(frenzy: Frenzy, alone: Path, launcher: LauncherKind) -> None:
    folder = alone / "it's new"
    assert frenzy("init", str(folder), "--launcher", launcher.value).status == 0
    settings = load_settings(sourced(folder))
    assert settings.launcher is launcher
    assert settings.home == folder / ".frenzy"
    assert settings.jobs_folder.is_dir()
    assert load_cluster(settings.cluster_file).nodes
    assert settings.pod_rules_file.is_file()
    assert settings.pod_rules_file.is_relative_to(folder) is (launcher is LauncherKind.KUBERNETES)
    for path in (folder / "include/jobs").glob("*.yaml"):
        job_from_yaml(path.read_text(encoding="utf-8"))
    made = {each.name: each.read_text(encoding="utf-8") for each in settings.dags_folder.iterdir()}
    assert made == {each.name: each.read_text(encoding="utf-8") for each in (CHECKOUT / "dags").glob("*.py")}
    assert all(len(text.splitlines()) <= 40 for text in made.values())


def test_the_run_root_is_taken_as_given(frenzy: Frenzy, alone: Path) -> None:
    frenzy("init", "here", "--run-root", "s3://bucket/runs")
    assert load_settings(sourced(alone / "here")).run_root == "s3://bucket/runs"


def test_it_says_what_comes_next(frenzy: Frenzy, alone: Path) -> None:
    said = frenzy("init", "here").out
    for step in ("frenzy up", "airflow db migrate", "--connect", str(alone / "here/frenzy.env")):
        assert step in said


def test_a_second_time_changes_nothing(frenzy: Frenzy, alone: Path) -> None:
    frenzy("init", "here")
    mine = alone / "here/include/clusters/cluster.yaml"
    mine.write_text(CLUSTER, encoding="utf-8")
    said = frenzy("init", "here")
    assert mine.read_text(encoding="utf-8") == CLUSTER
    assert "kept  include/clusters/cluster.yaml" in said.out
    assert "made" not in said.out


@pytest.mark.parametrize(("answer", "replaced"), [("y\n", True), ("n\n", False)])
def test_force_asks_for_each_file_that_differs(
    frenzy: Frenzy, alone: Path, monkeypatch: pytest.MonkeyPatch, answer: str, replaced: bool
) -> None:
    frenzy("init", "here")
    mine = alone / "here/include/clusters/cluster.yaml"
    before = mine.read_text(encoding="utf-8")
    mine.write_text(CLUSTER, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    said = frenzy("init", "here", "--force")
    assert mine.read_text(encoding="utf-8") == (before if replaced else CLUSTER)
    assert said.out.count("Replace ") == 1 and f"Replace {mine}?" in said.out


class FakeAirflow:
    """Airflow's API for Connections, as far as it is called."""

    def __init__(self) -> None:
        self.connections: dict[str, dict[str, Any]] = {}

    def routes(self) -> FastAPI:
        app = FastAPI()
        app.post("/auth/token", status_code=201)(lambda: {"access_token": "x.y.z"})
        app.get("/api/v2/connections/{name}")(lambda name: self._look(self.connections, name))
        app.post("/api/v2/connections", status_code=201)(self.add_connection)
        return app

    def add_connection(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.connections.setdefault(body["connection_id"], body)

    def _look(self, known: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
        if name not in known:
            raise HTTPException(404, f"{name} was not found")
        return known[name]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAirflow]:
    fake = FakeAirflow()
    with served(fake.routes()) as url:
        for name, value in (("URL", url), ("USER", "service"), ("PASSWORD", "geheim")):
            monkeypatch.setenv(f"FRENZY_{name}", value)
        yield fake


def test_connecting_makes_the_connection_and_nothing_else(frenzy: Frenzy, airflow: FakeAirflow) -> None:
    said = frenzy("init", "here", "--connect")
    assert said.status == 0, said.err
    made = airflow.connections["frenzy_default"]
    assert (made["login"], made["password"], made["host"]) == ("service", "geheim", "127.0.0.1")
    assert "geheim" not in said.out + said.err


def test_connecting_leaves_what_is_there_as_it_is(frenzy: Frenzy, airflow: FakeAirflow) -> None:
    airflow.connections["frenzy_default"] = {"host": "mine"}
    said = frenzy("init", "here", "--connect")
    assert airflow.connections == {"frenzy_default": {"host": "mine"}}
    assert "kept  connection frenzy_default" in said.out


def test_the_connection_may_hold_the_settings_for_components_without_these_variables(
    frenzy: Frenzy, airflow: FakeAirflow, alone: Path
) -> None:
    made = ("init", "here", "--launcher", "kubernetes", "--run-root", "s3://bucket/runs", "--share-settings")
    said = frenzy(*made)
    assert said.status == 0, said.err
    extras = json.loads(airflow.connections["frenzy_default"]["extra"])
    variables = sourced(alone / "here")
    assert load_settings({"FRENZY_HOME": variables["FRENZY_HOME"]}, extras) == replace(
        load_settings(variables), dags_folder=Settings().dags_folder
    )
    assert "FRENZY_LAUNCHER" in said.out and "geheim" not in said.out
    again = frenzy(*made).out
    assert "kept  connection frenzy_default" in again and "has its own extras" in again


def test_without_being_asked_the_connection_holds_no_settings(frenzy: Frenzy, airflow: FakeAirflow) -> None:
    frenzy("init", "here", "--launcher", "kubernetes", "--connect")
    assert "extra" not in airflow.connections["frenzy_default"]


def test_connecting_needs_a_server(frenzy: Frenzy, alone: Path) -> None:
    said = frenzy("init", "here", "--connect")
    assert said.status == 2
    assert "FRENZY_URL" in said.err
