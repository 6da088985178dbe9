"""The whole walk on PostgreSQL: Airflow and the ledger in one database, another than SQLite's file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from sqlalchemy import Connection, create_engine, text
from tests import postgres
from tests.e2e.growing import check_moves, growing
from tests.e2e.walker import Walker, write_cluster, write_corpus

from frenzy.cli.embedded.stack import Stack
from frenzy.core.values.errors import ReasonCode

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def database(postgres_server: postgres.Server) -> Iterator[str]:
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="module")
def walker(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    files = tmp_path_factory.mktemp("cluster")
    env = {"FRENZY_CLUSTER": str(write_cluster(files)), "FRENZY_ELASTIC": "off", "FRENZY_DATABASE": database}
    with Stack.running(tmp_path_factory.mktemp("stack"), env=env) as stack:
        user = Walker(stack, write_corpus(tmp_path_factory.mktemp("corpus")))
        yield user
        user.http.close()


def test_the_scheduler_outlives_a_lock_on_the_rows_of_pools(walker: Walker, database: str) -> None:
    """As reconciliation holds it while it changes them: Airflow's scheduler asks for these rows in each loop."""
    engine = create_engine(database)
    with engine.connect() as holder, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
        holder.execute(text("SELECT * FROM slot_pool FOR UPDATE"))
        for _ in range(2):
            before = _heartbeat(watcher)
            walker.eventually("a heartbeat of the scheduler", lambda seen=before: _heartbeat(watcher) > seen)
        holder.rollback()
    engine.dispose()
    assert walker.stack.is_running()


def _heartbeat(connection: Connection) -> datetime:
    wanted = text("SELECT max(latest_heartbeat) FROM job WHERE job_type = 'SchedulerJob'")
    found = connection.execute(wanted).scalar_one()
    assert isinstance(found, datetime)
    return found


def test_a_job_is_moved_for_its_memory_and_succeeds(walker: Walker, database: str) -> None:
    dag_id, run_id = walker.start("rising-on-postgres", training=growing(60, max_steps=60))
    view = walker.succeed(dag_id, run_id)
    check_moves(view)
    first = view.attempts[0]
    assert first.outcome is not None
    assert first.outcome.code is ReasonCode.MEMORY_PRESSURE_FORECAST
    assert view.attempts[-1].plan.gpu_memory_bytes > first.plan.gpu_memory_bytes
    assert not (walker.stack.settings.airflow_home / "airflow.db").exists()
    engine = create_engine(database)
    with engine.connect() as connection:
        attempts = connection.execute(text("SELECT outcome FROM frenzy_attempt ORDER BY attempt")).scalars().all()
        held = connection.execute(text("SELECT count(*) FROM frenzy_held_slot")).scalar()
        pools = connection.execute(text("SELECT pool, slots FROM slot_pool WHERE pool LIKE 'gpu%'")).all()
    engine.dispose()
    assert attempts == [a.outcome.code.value for a in view.attempts if a.outcome is not None]
    assert held == 0
    assert {pool: slots for pool, slots in pools} == {row.pool: row.num_gpus for row in walker.gpus().types}
