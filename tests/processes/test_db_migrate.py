"""``airflow db migrate`` makes the ledger's tables beside Airflow's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, make_url, text
from tests.contract import values
from tests.contract.ledgers import DATABASES

from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger

PLUGINS = Path(__file__).parents[2] / "plugins"


@dataclass(frozen=True, slots=True)
class Home:
    """An Airflow home and the two URLs of its database."""

    folder: Path
    url: str
    url_async: str

    def airflow(self, *arguments: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        environment = {
            **kept,
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": "frenzy.airflow.db.FrenzyDBManager",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.url,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": self.url_async,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONPATH": str(PLUGINS),
        }
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def table_names(self) -> set[str]:
        with self.connected() as connection:
            return set(inspect(connection).get_table_names())

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        engine = create_engine(self.url)
        with engine.connect() as connection:
            yield connection
        engine.dispose()


@pytest.fixture(scope="module", params=DATABASES)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("airflow")
    if request.param == "sqlite":
        path = f"///{folder}/airflow.db"
        yield migrated(Home(folder, f"sqlite:{path}", f"sqlite+aiosqlite:{path}"))
        return
    server = request.getfixturevalue("postgres_server")
    url = server.new_database()
    yield migrated(Home(folder, url, make_url(url).set(drivername="postgresql+psycopg_async").render_as_string(False)))
    server.drop(url)


def migrated(home: Home) -> Home:
    home.airflow("db", "migrate")
    return home


def test_migrating_makes_and_stamps_the_tables(home: Home) -> None:
    assert {"frenzy_run", "frenzy_lease", "frenzy_held_slot", "frenzy_residual", "task_instance"} <= home.table_names()
    with home.connected() as connection:
        assert connection.execute(text("SELECT version_num FROM frenzy_alembic_version")).all() == [("0007",)]


def test_migrating_again_changes_nothing_and_the_check_passes(home: Home) -> None:
    before = home.table_names()
    home.airflow("db", "migrate")
    home.airflow("db", "check-migrations", "--migration-wait-timeout", "5")
    assert home.table_names() == before


def test_the_ledger_works_on_airflows_own_tables(home: Home) -> None:
    """Pools appear for Airflow, and an unknown DAG run counts as over."""
    ledger = SqlLedger.at(home.url)
    with ledger.transaction() as tx:
        tx.put_cluster(values.cluster())
        tx.mirror_pools(values.cluster())
        tx.put_run(values.run())
        assert tx.outlived() == (values.run().run_key,)
        assert not tx.assign_launch_pool(values.identity(), "gpu_small", 1)
    ledger.close()
    pools = home.airflow("pools", "list", "--output", "json")
    assert '"gpu_small"' in pools and '"default_pool"' in pools
