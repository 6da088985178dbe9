"""``airflow db migrate`` makes the ledger's tables beside Airflow's own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract import values

from frenzy.adapters.storage.sql_ledger import SqlLedger
from frenzy.core.ledger import RunIdentity

PLUGINS = Path(__file__).parents[2] / "plugins"


def airflow(home: Path, *arguments: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment = {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": "frenzy.airflow.db.FrenzyDBManager",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(PLUGINS),
    }
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("airflow")
    airflow(folder, "db", "migrate")
    return folder


def table_names(home: Path) -> set[str]:
    with sqlite3.connect(home / "airflow.db") as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return names


def test_migrating_makes_and_stamps_the_tables(home: Path) -> None:
    assert {"frenzy_run", "frenzy_lease", "frenzy_held_slot", "frenzy_residual", "task_instance"} <= table_names(home)
    with sqlite3.connect(home / "airflow.db") as connection:
        assert connection.execute("SELECT version_num FROM frenzy_alembic_version").fetchall() == [("0002",)]
    connection.close()


def test_migrating_again_changes_nothing_and_the_check_passes(home: Path) -> None:
    before = table_names(home)
    airflow(home, "db", "migrate")
    airflow(home, "db", "check-migrations", "--migration-wait-timeout", "5")
    assert table_names(home) == before


def test_the_ledger_works_on_airflows_own_tables(home: Path) -> None:
    """Pools appear for Airflow, and an unknown DAG run counts as over."""
    ledger = SqlLedger.at(f"sqlite:///{home}/airflow.db")
    with ledger.transaction() as tx:
        tx.put_cluster(values.cluster())
        tx.mirror_pools(values.cluster())
        assert tx.dag_run_is_over(RunIdentity(dag_id="d", run_id="r", task_group=""))
        assert not tx.assign_launch_pool(values.identity(), "gpu_small", 1)
    ledger.close()
    pools = airflow(home, "pools", "list", "--output", "json")
    assert '"gpu_small"' in pools and '"default_pool"' in pools
