"""What the embedded Airflow's processes are given of Frenzy's settings."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from frenzy.adapters.connection_settings import extras_in
from frenzy.cli.embedded.airflow_env import CONNECTION_VARIABLE, airflow_environment
from frenzy.core.values.errors import SpecError
from frenzy.settings import ElasticMoves, LauncherKind, Settings, load_settings

PORT = 8181


def given(base: dict[str, str], home: Path, **changed: object) -> dict[str, str]:
    settings = replace(load_settings({**base, "FRENZY_HOME": str(home)}), **changed)  # type: ignore[arg-type]
    return airflow_environment(settings, PORT, base)


def seen(environ: dict[str, str]) -> Settings:
    """What a component makes of its environment and Connection."""
    extra = json.loads(environ[CONNECTION_VARIABLE]).get("extra")
    return load_settings(environ, extras_in(extra))


@pytest.mark.parametrize(
    "base",
    [
        {},
        {"FRENZY_LAUNCHER": "kubernetes", "FRENZY_LEASE_S": "9"},
        {"FRENZY_POLL_S": "7", "FRENZY_RUN_ROOT": "s3://bucket/runs"},
    ],
)
def test_components_see_the_settings_of_the_stack(base: dict[str, str], tmp_path: Path) -> None:
    assert seen(given(base, tmp_path)) == replace(load_settings({**base, "FRENZY_HOME": str(tmp_path)}))


def test_what_a_program_has_changed_reaches_them_as_well(tmp_path: Path) -> None:
    changed = {"elastic": ElasticMoves.AUTO, "lease_s": 60.0, "run_root": "/runs", "launcher": LauncherKind.LOCAL}
    base = {"FRENZY_ELASTIC": "off", "FRENZY_LEASE_S": "9", "FRENZY_LAUNCHER": "kubernetes", "FRENZY_POLL_S": "1"}
    read = seen(given(base, tmp_path, **changed))
    assert {name: getattr(read, name) for name in changed} == changed


def test_the_connection_keeps_its_settings_and_leads_to_this_home(tmp_path: Path) -> None:
    extras = {"FRENZY_LAUNCHER": "kubernetes", "FRENZY_LEASE_S": 9, "FRENZY_RUN_ROOT": "/srv/runs"}
    mine = {"conn_type": "http", "host": "elsewhere", "port": 1, "login": "me", "password": "geheim", "extra": extras}
    environ = given({CONNECTION_VARIABLE: json.dumps(mine), "FRENZY_LEASE_S": "12"}, tmp_path)
    made = json.loads(environ[CONNECTION_VARIABLE])
    assert (made["host"], made["port"], made["login"]) == ("127.0.0.1", PORT, "frenzy")
    read = seen(environ)
    assert (read.launcher, read.run_root, read.lease_s) == (LauncherKind.KUBERNETES, "/srv/runs", 12.0)
    assert read.poll_s == 2.0, "what the launcher implies"


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_on_postgresql_blocking_calls_go_by_the_driver_whose_errors_airflow_knows(scheme: str, tmp_path: Path) -> None:
    environ = given({}, tmp_path, database=f"{scheme}://me:s%40cret@/db?host=/run/pg")
    rest = "://me:s%40cret@/db?host=%2Frun%2Fpg"
    assert environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"postgresql+psycopg2{rest}"
    assert environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] == f"postgresql+psycopg_async{rest}"


def test_a_refused_setting_in_the_connection_ends_the_start(tmp_path: Path) -> None:
    mine = {"conn_type": "http", "extra": {"FRENZY_LAUNCHER": "slurm"}}
    with pytest.raises(SpecError, match="allowed: local, kubernetes"):
        given({CONNECTION_VARIABLE: json.dumps(mine)}, tmp_path)


def test_what_is_no_connection_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="as JSON or as a URI") as refusal:
        given({CONNECTION_VARIABLE: '{"password": "geheim"'}, tmp_path)
    assert "geheim" not in str(refusal.value)


def test_connections_to_sqlite_wait_for_each_other_but_not_for_the_disk(tmp_path: Path) -> None:
    environ = given({}, tmp_path)
    module, _, name = environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS"].rpartition(".")
    url = environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    (tmp_path / "airflow").mkdir(exist_ok=True)
    engine = create_engine(url, connect_args=getattr(importlib.import_module(module), name))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 1, "NORMAL"
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 60_000
    engine.dispose()


def test_the_api_server_never_waits_for_a_connection_in_its_event_loop(tmp_path: Path) -> None:
    assert given({}, tmp_path)["AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW"] == "-1", "no limit"
