"""The SQL ledger beyond its contract: several processes, migrations, errors of the database."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, column, create_engine, insert, inspect, make_url, select, text
from sqlalchemy import table as sa_table
from sqlalchemy.exc import IntegrityError
from tests.contract import values
from tests.contract.ledgers import DATABASES, SqlWorld, postgres_world, sqlite_world
from tests.ledger_clients import NUM_NODES
from tests.postgres import Server

from frenzy.adapters.ledger_sql import database as engine_module
from frenzy.adapters.ledger_sql import ledger_tables as tables
from frenzy.adapters.ledger_sql import sql_ledger as ledger_module
from frenzy.adapters.ledger_sql.database import ledger_engine
from frenzy.adapters.ledger_sql.schema import migrate, migrations_config
from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
from frenzy.core.runs.ledger import JobState, LeaseState, Preparation, QueueEntry, RunRecord
from frenzy.core.values import codec
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.resource_plan import Candidate
from frenzy.settings import CHECKOUT


@pytest.fixture(params=DATABASES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlWorld]:
    if request.param == "sqlite":
        made = closing(sqlite_world(tmp_path))
    else:
        made = postgres_world(request.getfixturevalue("postgres_server"))
    with made as world:
        with world.ledger.transaction() as tx:
            tx.put_cluster(values.cluster())
        yield world


# the queue


def test_a_hold_is_written_without_the_rest_of_its_entry_and_plans_are_kept_once(world: SqlWorld) -> None:
    runs = [values.run(each) for each in ("r1", "r2")]
    entries = [values.queue_entry(each.run_key) for each in runs]
    hold = Reason(code=ReasonCode.BEST_PLAN_NOW, detail=f"It waits in {world.url}.", remedy="Wait.")
    with world.ledger.transaction() as tx:
        for run, entry in zip(runs, entries, strict=True):
            tx.put_run(run)
            tx.put_queue_entry(entry)
    before = queue_rows_of(world.url)
    held = [replace(each, hold=hold, position=3, expected_start_s=12.5) for each in entries]
    with world.ledger.transaction() as tx:
        tx.put_holds([replace(each, submitted_s=99.0) for each in held])
    after = queue_rows_of(world.url)
    assert [each.document for each in after] == [each.document for each in before]
    assert len({each.plan_table for each in after}) == 1
    with world.ledger.reading() as tx:
        first, second = tx.queue()
    assert {first.run_key, second.run_key} == {each.run_key for each in runs}
    assert first in held and second in held
    assert first.plans is second.plans, "tables of plans are found by identity in the next decision"


def queue_rows_of(url: str) -> list[Any]:
    with connected(url) as connection:
        return [*connection.execute(select(tables.queue_entry).order_by(tables.queue_entry.c.run_key))]


# Airflow's tables


def test_a_launch_task_that_is_not_there_is_over_unless_it_is_yet_to_be_mapped(world: SqlWorld) -> None:
    mapped, stranger = values.identity(map_index=2), values.identity("manual__2")
    world.add_launch_task(values.identity(map_index=-1))
    with world.ledger.reading() as tx:
        assert not tx.launch_is_over(mapped)
        assert tx.launch_is_over(stranger)
    world.add_launch_task(mapped)
    world.set_launch_task(mapped, "failed")
    with world.ledger.reading() as tx:
        assert tx.launch_is_over(mapped)


# migrations


@pytest.fixture(params=DATABASES)
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Makes empty databases."""
    if request.param == "sqlite":
        yield lambda: f"sqlite:///{tmp_path}/{uuid.uuid4().hex}.db"
        return
    server, made = request.getfixturevalue("postgres_server"), []

    def make() -> str:
        made.append(server.new_database())
        return made[-1]

    yield make
    for url in made:
        server.drop(url)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_migrations_and_tables_agree(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url)
    with connected(url) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": tables.VERSION_TABLE})
        assert compare_metadata(context, tables.metadata) == []


def test_migrations_and_tables_make_the_same_constraints(new_database: Callable[[], str]) -> None:
    """Autogeneration does not compare checks and partial indexes, so their SQL is compared."""
    migrated, created = new_database(), new_database()
    migrate(migrated)
    with connected(created) as connection:
        tables.metadata.create_all(connection)
    made = _definitions(migrated)
    assert len(made) > len(tables.metadata.tables)
    assert made == _definitions(created)


_DEFINITIONS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL",
    "postgresql": """
        SELECT conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid > 0 AND connamespace = 'public'::regnamespace
        UNION ALL SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT table_name || '.' || column_name, concat_ws(' ', data_type, character_maximum_length,
            is_nullable, column_default) FROM information_schema.columns WHERE table_schema = 'public'
    """,
}


def _definitions(url: str) -> dict[str, list[str]]:
    """Name to the sorted clauses of each table's, constraint's and index's SQL.

    SQLite puts a column that is added later behind the last one, in the same line.
    """
    with connected(url) as connection:
        rows = connection.execute(text(_DEFINITIONS[connection.dialect.name])).all()
    kept = {name: sql for name, sql in rows if tables.VERSION_TABLE not in name}
    return {
        name: sorted({each.strip().rstrip(",") for each in re.split(r"\n|, (?=[a-z_]+ [A-Z])", sql)})
        for name, sql in kept.items()
    }


def test_the_migrations_go_back_to_nothing(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url)
    command.downgrade(migrations_config(url), "base")
    with connected(url) as connection:
        assert inspect(connection).get_table_names() == [tables.VERSION_TABLE]


def test_on_the_way_back_a_run_that_is_preparing_is_planned(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url)
    ledger = SqlLedger.at(url)
    with ledger.transaction() as tx:
        tx.put_run(replace(values.run("r1"), state=JobState.PREPARING))
        tx.put_preparation(Preparation(run_key=values.run("r1").run_key, number=1, begun_s=1.0, seen_s=1.0))
    command.downgrade(migrations_config(url), "0003")
    (document,) = documents(url).values()
    assert document["state"] == JobState.PLANNED


def test_plans_that_stood_in_their_runs_are_found_as_plan_tables_and_the_other_way_round(
    new_database: Callable[[], str],
) -> None:
    """A ledger of the version before, two of whose runs have the same plans, and one has none."""
    url = new_database()
    migrate(url, "0005")
    plans = codec.encode((Candidate(plan=values.plan(), rank=1, reason=Reason(code=ReasonCode.BEST_PLAN)),))
    runs = [values.run(each) for each in ("r1", "r2", "r3")]
    with connected(url) as connection:
        for run, candidates in zip(runs, (plans, plans, []), strict=True):
            document = json.loads(codec.dumps(run))
            del document["plan_table"]
            text = json.dumps({**document, "candidates": candidates})
            row = {"run_key": run.run_key, **run_columns(run), "document": text}
            connection.execute(insert(tables.run).values(row))
    before = documents(url)
    migrate(url)
    ledger = SqlLedger.at(url)
    with ledger.reading() as tx:
        first, second, third = (tx.run(each.run_key) for each in runs)
        assert first is not None and second is not None and third is not None
        assert first.plan_table == second.plan_table != third.plan_table == ""
        assert codec.encode(tx.plan_tables([first.plan_table])[first.plan_table]) == plans
    ledger.close()
    command.downgrade(migrations_config(url), "0005")
    assert documents(url) == before


def test_plan_tables_that_an_interrupted_migration_left_are_made_again(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url, "0005")
    with connected(url) as connection:
        tables.plan_table.create(connection)
    migrate(url)
    with connected(url) as connection:
        assert connection.execute(select(tables.plan_table)).all() == []


def ledger_of_0006(url: str) -> list[QueueEntry]:
    """Two runs that wait with the same plans, of which one has a hold; its entries, as they are to be found later."""
    migrate(url, "0006")
    runs = [values.run(each) for each in ("r1", "r2")]
    hold = Reason(code=ReasonCode.BEST_PLAN_NOW, detail="It waits.", remedy="Wait.")
    first, second = (values.queue_entry(each.run_key, number) for number, each in enumerate(runs))
    entries = [replace(first, hold=hold, position=3, expected_start_s=12.5), second]
    stored = sa_table("frenzy_queue_entry", column("run_key"), column("submitted_s"), column("document"))
    with connected(url) as connection:
        for run, entry in zip(runs, entries, strict=True):
            row = {"run_key": run.run_key, **run_columns(run), "document": codec.dumps(run)}
            connection.execute(insert(tables.run).values(row))
            row = {"run_key": run.run_key, "submitted_s": entry.submitted_s, "document": codec.dumps(entry)}
            connection.execute(insert(stored).values(row))
    return entries


def entries_stored(url: str) -> dict[str, Any]:
    with connected(url) as connection:
        rows = connection.execute(text("SELECT run_key, document FROM frenzy_queue_entry"))
        return {key: json.loads(document) for key, document in rows}


def entries_read(url: str) -> list[QueueEntry]:
    ledger = SqlLedger.at(url)
    with ledger.reading() as tx:
        entries = [*tx.queue()]
    ledger.close()
    return entries


def test_plans_and_holds_of_the_queue_are_moved_out_of_its_entries_and_back(new_database: Callable[[], str]) -> None:
    url = new_database()
    entries, before = ledger_of_0006(url), entries_stored(url)
    migrate(url)
    assert entries_read(url) == entries
    assert all(each["plans"] == [] and each["hold"] is None for each in entries_stored(url).values())
    assert len({each.plan_table for each in queue_rows_of(url)}) == 1
    command.downgrade(migrations_config(url), "0006")
    assert entries_stored(url) == before
    migrate(url)
    assert entries_read(url) == entries


def test_a_queue_of_which_an_interrupted_migration_moved_a_part_is_moved_whole(new_database: Callable[[], str]) -> None:
    """On SQLite there is no transaction around it. The last entry cannot be read at first."""
    url = new_database()
    entries = ledger_of_0006(url)
    last = {"key": entries[-1].run_key}
    spoil = "UPDATE frenzy_queue_entry SET document = {} WHERE run_key = :key"
    with connected(url) as connection:
        connection.execute(text(spoil.format("'?' || document")), last)
    with pytest.raises(json.JSONDecodeError):
        migrate(url)
    with connected(url) as connection:
        connection.execute(text(spoil.format("substr(document, 2)")), last)
    migrate(url)
    assert entries_read(url) == entries


@pytest.mark.parametrize("revisions", ["0005:0006", "0006:0005", "0006:0007", "0007:0006"])
def test_what_is_stored_is_moved_by_no_sql_alone(revisions: str) -> None:
    begins, ends = revisions.split(":")
    move = command.upgrade if begins < ends else command.downgrade
    with pytest.raises(CommandError, match="with a connection to the database"):
        move(migrations_config("postgresql://"), revisions, sql=True)


def run_columns(run: RunRecord) -> dict[str, object]:
    where = {name: getattr(run.identity, name) for name in ("dag_id", "run_id", "task_group", "map_index")}
    return {**where, "state": run.state.value, "created_s": run.created_s}


def documents(url: str) -> dict[str, Any]:
    with connected(url) as connection:
        rows = connection.execute(select(tables.run.c.run_key, tables.run.c.document))
        return {key: json.loads(document) for key, document in rows}


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_the_migrations_have_sql_for_each_database(capsys: pytest.CaptureFixture[str], dialect: str) -> None:
    """Offline, so no driver of that database is needed."""
    command.upgrade(migrations_config(f"{dialect}://"), "head", sql=True)
    sql = capsys.readouterr().out
    assert "CREATE TABLE frenzy_lease" in sql
    assert "WHERE state <> 'ended'" in sql


# invariants without the code that keeps them


def test_the_database_itself_refuses_a_slot_twice(world: SqlWorld) -> None:
    with world.ledger.transaction() as tx:
        tx.put_lease(values.lease("a", n1=2))
    row = {"node": "n1", "num_slots_of_node": 2, "run_key": "a", "attempt": 1}
    for slot in (0, 2, -1):
        with pytest.raises(IntegrityError), world._engine.begin() as connection:
            connection.execute(insert(tables.held_slot).values(slot=slot, **row))


def test_the_database_itself_refuses_a_second_held_lease(world: SqlWorld) -> None:
    with world.ledger.transaction() as tx:
        tx.put_lease(values.lease("a", 1, n1=1))
    copy = "INSERT INTO frenzy_lease SELECT run_key, 2, {}, gpu_type, num_gpus, granted_s, heartbeat_s, expires_s,"
    copy += " ended_s, end_reason, document FROM frenzy_lease"
    for state in ("'live'", "'suspect'", "'ended'", "'other'"):
        with pytest.raises(IntegrityError), world._engine.begin() as connection:
            connection.execute(text(copy.format(state)))


def test_a_conflict_that_was_caught_leaves_the_transaction_usable(world: SqlWorld) -> None:
    with world.ledger.transaction() as tx:
        with pytest.raises(Exception, match="no training run"):
            tx.put_queue_entry(values.queue_entry("nobody"))
        tx.put_lease(values.lease("a", n1=1))
    with world.ledger.reading() as tx:
        assert len(tx.held_leases()) == 1


# several processes

_GRAB = """
import sys
from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger
from frenzy.core.values.errors import FrenzyError
from frenzy.ports import LedgerConflict
from tests.contract import values

ledger, number = SqlLedger.at(sys.argv[1]), int(sys.argv[2])
for attempt in range(8):
    try:
        with ledger.transaction() as tx:
            tx.put_lease(values.lease(f"{number}-{attempt}", n1=1, n2=1))
    except LedgerConflict:
        pass
"""


def test_processes_that_race_for_the_last_slots_never_book_one_twice(world: SqlWorld) -> None:
    with world.ledger.transaction() as tx:
        tx.put_cluster(values.cluster(values.node("n1", num_gpus=5), values.node("n2", num_gpus=9)))
    racing = [subprocess.Popen([sys.executable, "-c", _GRAB, world.url, str(number)]) for number in range(4)]
    assert [each.wait() for each in racing] == [0] * 4
    with world.ledger.reading() as tx:
        assert len(tx.held_leases()) == 5
    assert world._do("SELECT node, count(*) FROM frenzy_held_slot GROUP BY node ORDER BY node") == [
        ("n1", 5),
        ("n2", 5),
    ]


@pytest.mark.parametrize(("database", "num_clients"), [("postgresql", 50), ("sqlite", 8)])
def test_many_clients_at_once_book_no_gpu_twice_and_none_is_thrown_out(
    database: str, num_clients: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Deadlocks, lock timeouts and refused connections would be faults, too."""
    if database == "sqlite":
        made = closing(sqlite_world(tmp_path))
    else:
        made = postgres_world(request.getfixturevalue("postgres_server"))
    with made as world:
        command = [sys.executable, "-m", "tests.ledger_clients", world.url, str(num_clients), "3"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen["faults"] == []
        assert seen["num_granted"] >= NUM_NODES
        assert seen["num_granted"] + seen["num_refused"] == 3 * num_clients
        assert world._do("SELECT count(*) FROM frenzy_held_slot") == [(0,)]
        assert world._do("SELECT count(*) FROM frenzy_lease WHERE state = 'ended'") == [(seen["num_granted"],)]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # Python 3.12, of a process with threads
def test_a_connection_made_before_a_fork_is_not_used_after_it(world: SqlWorld) -> None:
    with world.ledger.reading() as tx:
        tx.cluster()
    pool = world.ledger._engine.pool
    child = os.fork()
    if child == 0:
        with suppress(BaseException), world.ledger.transaction() as tx:
            os._exit(int(tx.cluster() != values.cluster() or world.ledger._engine.pool is pool))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert world.ledger._engine.pool is pool
    with world.ledger.reading() as tx:
        assert tx.cluster() == values.cluster()


# the database's own errors


def test_a_database_that_stays_locked_is_worth_another_try(world: SqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(ledger_module, "BUSY_TIMEOUT_S", 0.05)
    impatient = SqlLedger(ledger_engine(world.url))
    with world.ledger.transaction(), pytest.raises(TemporaryError) as refused, impatient.transaction():
        pass
    assert refused.value.retry_after_s > 0
    impatient.close()


def test_after_a_failover_no_connection_to_what_is_a_standby_now_is_kept(postgres_server: Server) -> None:
    """It answers pings, and refuses every write. Played by a setting that new connections have."""
    with postgres_world(postgres_server) as world:

        def set_read_only(value: str) -> None:
            name = make_url(world.url).database
            world._do(
                f'SET TRANSACTION READ WRITE; ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'
            )

        set_read_only("on")
        with pytest.raises(TemporaryError, match="read-only"), world.ledger.transaction():
            pass
        set_read_only("off")
        with world.ledger.transaction() as tx:
            tx.put_cluster(values.cluster())


def test_missing_tables_name_the_remedy(new_database: Callable[[], str]) -> None:
    ledger = SqlLedger.at(new_database())
    with pytest.raises(PermanentError, match="airflow db migrate"), ledger.reading() as tx:
        tx.run("a")
    ledger.close()


# Airflow's side


def test_the_hook_finds_the_pool_of_a_held_lease(world: SqlWorld) -> None:
    identity = values.identity(task_group="outer.train", map_index=2)
    key = identity.run_key
    where = (identity.dag_id, identity.run_id)
    lease = values.lease(key, n1=1, n2=2)
    with world.ledger.transaction() as tx:
        tx.put_lease(lease)
    assert world.ledger.launch_pool(*where, "outer.train.launch", 2) == ("gpu_small", 3)
    assert world.ledger.launch_pool(*where, "outer.train.launch", 1) is None
    assert world.ledger.launch_pool(*where, "outer.train.decide", 2) is None
    with world.ledger.transaction() as tx:
        tx.put_lease(replace(lease, state=LeaseState.ENDED, ended_s=1.0, end_reason=values.ENDED))
    assert world.ledger.launch_pool(*where, "outer.train.launch", 2) is None


def test_a_pool_of_a_vanished_type_stays_while_tasks_name_it(world: SqlWorld) -> None:
    identity = values.identity()
    world.add_launch_task(identity)
    with world.ledger.transaction() as tx:
        tx.mirror_pools(values.cluster())
        tx.assign_launch_pool(identity, "gpu_small", 1)
        tx.mirror_pools(replace(values.cluster(), gpu_types=(), nodes=()))
    assert world.pools() == {"gpu_small": 0}


def test_pools_of_others_are_left_alone(world: SqlWorld) -> None:
    world._do("INSERT INTO slot_pool (pool, slots, include_deferred) VALUES ('default_pool', 128, false)")
    with world.ledger.transaction() as tx:
        tx.mirror_pools(values.cluster())
    assert world.pools()["default_pool"] == 128


@pytest.mark.parametrize(
    ("owners", "told"), [("airflow", None), ("ada", "ada"), ("airflow, ada", "ada"), ("ada, ben", None), ("", None)]
)
def test_a_scheduled_run_belongs_to_the_one_owner_that_its_dag_names(
    owners: str, told: str | None, world: SqlWorld
) -> None:
    identity = values.run().identity
    world.add_dag(identity.dag_id, owners=owners)
    world.set_dag_run(identity, "running")
    with world.ledger.reading() as tx:
        assert tx.started_by(identity.dag_id, identity.run_id) == told


def test_the_dag_of_a_stored_job_takes_no_name(world: SqlWorld) -> None:
    world.add_dag("job_stored", bundle="frenzy-jobs")
    with world.ledger.reading() as tx:
        assert not tx.has_dag("job_stored")
