"""Airflow and the ledger in one PostgreSQL database, on which the shared Airflow is started where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from tests import postgres
from tests.e2e.growing import Moved
from tests.e2e.walker import Walker

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def engine(walker: Walker) -> Iterator[Engine]:
    if make_url(walker.database).get_backend_name() == "sqlite":
        pytest.skip(postgres.MISSING)
    engine = create_engine(walker.database)
    yield engine
    engine.dispose()


def test_the_scheduler_outlives_a_lock_on_the_rows_of_pools(walker: Walker, engine: Engine) -> None:
    """As reconciliation holds it while it changes them: Airflow's scheduler asks for these rows in each loop."""
    with engine.connect() as holder, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
        holder.execute(text("SELECT * FROM slot_pool FOR UPDATE"))
        for _ in range(2):
            before = _heartbeat(watcher)
            walker.eventually("a heartbeat of the scheduler", lambda seen=before: _heartbeat(watcher) > seen)
        holder.rollback()
    assert walker.stack.is_running()


def _heartbeat(connection: Connection) -> datetime:
    wanted = text("SELECT max(latest_heartbeat) FROM job WHERE job_type = 'SchedulerJob'")
    found = connection.execute(wanted).scalar_one()
    assert isinstance(found, datetime)
    return found


def test_its_tables_say_of_a_moved_run_what_the_pages_say(walker: Walker, engine: Engine, moved: Moved) -> None:
    of_run = {"key": moved.view.run.run_key}
    with engine.connect() as connection:
        wanted = text("SELECT outcome FROM frenzy_attempt WHERE run_key = :key ORDER BY attempt")
        attempts = connection.execute(wanted, of_run).scalars().all()
        held = connection.execute(text("SELECT count(*) FROM frenzy_held_slot WHERE run_key = :key"), of_run).scalar()
        pools = connection.execute(text("SELECT pool, slots FROM slot_pool WHERE pool LIKE 'gpu%'")).all()
    assert attempts == [a.outcome.code.value for a in moved.view.attempts if a.outcome is not None]
    assert held == 0
    assert {pool: slots for pool, slots in pools} == {row.pool: row.num_gpus for row in walker.gpus().types}
    assert not (walker.stack.settings.airflow_home / "airflow.db").exists()
