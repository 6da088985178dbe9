"""One embedded Airflow for all end-to-end tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from frenzy.cli.stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A running Airflow in a home and on a port of its own."""
    with Stack.running(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture(scope="session")
def airflow(stack: Stack) -> Iterator[httpx.Client]:
    """Airflow's REST API as the administrator."""
    with httpx.Client(
        base_url=f"{stack.base_url}/api/v2", headers=stack.headers("admin"), timeout=30.0, trust_env=False
    ) as client:
        yield client
