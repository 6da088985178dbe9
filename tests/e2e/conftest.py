"""Two embedded Airflows: for jobs that move for others and for being broken, then for all else.

The second is on PostgreSQL where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from tests.e2e.growing import Moved, move_for_memory
from tests.e2e.together import Together, hand_in
from tests.e2e.walker import ELASTIC_CLUSTER, READ_SELDOM, Walker, write_cluster, write_corpus
from tests.embedded_stack import Stack

from frenzy.cli.embedded.airflow_env import CONNECTION_VARIABLE, USERS_VARIABLE
from frenzy.cli.embedded.tcp_ports import reserved_port

# Short, so that a test can outlast one.
LEASE_S = 15


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the other Airflow come first; the last of them stops it."""
    items.sort(key=lambda item: "stack" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, stack_settings: Callable[[str], dict[str, str]]) -> Iterator[Stack]:
    """A running Airflow in a home and on a port of its own, over the test cluster.

    Its settings stand in its Connection; those of other tests' Airflows in the environment.
    """
    files = tmp_path_factory.mktemp("cluster")
    extras = {
        "FRENZY_CLUSTER": str(write_cluster(files)),
        "FRENZY_RUN_ROOT": str(tmp_path_factory.mktemp("runs")),
        "FRENZY_LEASE_S": LEASE_S,
        # What moves a job in these tests is its memory, or a person; jobs that move for others have another Airflow.
        "FRENZY_ELASTIC": "off",
        # The text of most tests has fewer.
        "FRENZY_PREPARE_ABOVE_TOKENS": 300_000,
    }
    queues = files / "queues.yaml"
    queues.write_text("teams: {readers: {members: [ada, ben]}}\n", encoding="utf-8")
    env = {
        CONNECTION_VARIABLE: json.dumps({"conn_type": "http", "extra": {**extras, "FRENZY_QUEUES": str(queues)}}),
        **READ_SELDOM,
        USERS_VARIABLE: "admin:admin,frenzy:user,viewer:viewer,ada:user,ben:user,eve:user",
    }
    with Stack.running(tmp_path_factory.mktemp("stack"), env={**env, **stack_settings("postgresql")}) as running:
        yield running


@pytest.fixture(scope="session")
def walker(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walker]:
    """A user of the stack with a text of their own."""
    user = Walker(stack, write_corpus(tmp_path_factory.mktemp("corpus")))
    yield user
    user.http.close()


@pytest.fixture(scope="session")
def together(walker: Walker, tmp_path_factory: pytest.TempPathFactory) -> Together:
    return hand_in(walker, tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="session")
def moved(walker: Walker) -> Moved:
    return move_for_memory(walker)


@pytest.fixture(scope="session")
def elastic_walker(
    tmp_path_factory: pytest.TempPathFactory, stack_settings: Callable[[str], dict[str, str]]
) -> Iterator[Walker]:
    """A user of an Airflow where seconds are the least time between two moves, not a minute."""
    files = tmp_path_factory.mktemp("elastic")
    env = {
        **READ_SELDOM,
        "FRENZY_CLUSTER": str(write_cluster(files, ELASTIC_CLUSTER)),
        "FRENZY_LEASE_S": str(LEASE_S),
        "FRENZY_MIN_RUN_S": "3",
        "FRENZY_RESTART_S": "8",
    }
    # Tests stop it and start it again. Other stacks look for a port from 8080 to 8279 meanwhile.
    with reserved_port("127.0.0.1", None, preferred=8400) as port:
        pass
    with Stack.running(files / "home", port, env={**env, **stack_settings("sqlite")}) as running:
        user = Walker(running, write_corpus(files))
        yield user
        user.http.close()


@pytest.fixture(scope="session")
def airflow(stack: Stack) -> Iterator[httpx.Client]:
    """Airflow's REST API as the administrator."""
    with httpx.Client(
        base_url=f"{stack.base_url}/api/v2", headers=stack.headers("admin"), timeout=30.0, trust_env=False
    ) as client:
        yield client
