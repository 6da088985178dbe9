"""The ledgers that keep one contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract import values
from tests.contract.ledgers import DATABASES, MemoryWorld, World, postgres_world, sqlite_world

from frenzy.ports import LedgerStore


@pytest.fixture(params=["memory", *DATABASES])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
    elif request.param == "sqlite":
        with closing(sqlite_world(tmp_path)) as made:
            yield made
    else:
        with postgres_world(request.getfixturevalue("postgres_server")) as made:
            yield made


@pytest.fixture
def ledger(world: World) -> LedgerStore:
    with world.ledger.transaction() as tx:
        tx.put_cluster(values.cluster())
    return world.ledger
