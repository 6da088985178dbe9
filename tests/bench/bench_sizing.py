"""What Airflow's components take, with nothing to do and with trainings on: memory, CPU, database connections.

An embedded Airflow on PostgreSQL, as the tests start it. The trainings are slow on purpose: they run on
while it is looked. Workers are not counted; on a cluster they are pods.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
from sqlalchemy import create_engine, text
from tests import postgres
from tests.bench.report import figure, publish
from tests.e2e.walker import Walker, long_training, write_cluster, write_corpus
from tests.embedded_stack import Stack

from frenzy.cli.embedded.stack import COMPONENTS

NUM_JOBS: Final = 4
_LOOK_S: Final = 30.0
_ONE_SLOW: Final = {"gpu_types": ["t-slow"], "max_gpus": 1}


def main() -> list[dict[str, Any]]:
    """Start, look, train, look again; the figures."""
    if not postgres.is_available():
        print(postgres.MISSING)
        return []
    with postgres.running_server() as server, tempfile.TemporaryDirectory(prefix="frenzy-sizing-") as folder:
        home = Path(folder)
        env = {"FRENZY_DATABASE": server.new_database(), "FRENZY_CLUSTER": str(write_cluster(home))}
        with Stack.running(home / "home", env={**env, "FRENZY_ELASTIC": "off"}) as stack:
            rows = _look(stack, env["FRENZY_DATABASE"], "no job")
            user = Walker(stack, write_corpus(home))
            for number in range(NUM_JOBS):
                dag_id, run_id = user.start(f"long-{number}", training=long_training(), constraints=_ONE_SLOW)
                user.wait_for_step(dag_id, run_id, 2)
            rows += _look(stack, env["FRENZY_DATABASE"], f"{NUM_JOBS} jobs train")
            user.http.close()
    return publish("sizing", rows)


def _look(stack: Stack, database: str, when: str) -> list[dict[str, Any]]:
    before = {name: _cpu_s(stack, name) for name in COMPONENTS}
    most = _most_connections(database, time.monotonic() + _LOOK_S)
    rows = []
    for name in COMPONENTS:
        memory = sum(each.memory_full_info().pss for each in _processes(stack, name))
        rows.append(figure(f"{when}: {name}, memory", memory / 2**20, "MiB"))
        rows.append(figure(f"{when}: {name}, CPU", 100 * (_cpu_s(stack, name) - before[name]) / _LOOK_S, "% of a core"))
    return [*rows, figure(f"{when}: database connections, at most", most, "")]


def _processes(stack: Stack, name: str) -> list[psutil.Process]:
    """The component's processes; tasks and parsers among them come and go."""
    pid = next(each.pid for each in stack.status() if each.name == name)
    leader = psutil.Process(pid)
    return [leader, *leader.children(recursive=True)]


def _cpu_s(stack: Stack, name: str) -> float:
    times = [each.cpu_times() for each in _processes(stack, name)]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def _most_connections(database: str, until_s: float) -> int:
    """The most connections to the database that were seen, our own left out."""
    wanted = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    engine = create_engine(database, isolation_level="AUTOCOMMIT")
    most = 0
    with engine.connect() as connection:
        while time.monotonic() < until_s:
            most = max(most, connection.execute(wanted).scalar_one())
            time.sleep(0.2)
    engine.dispose()
    return most
