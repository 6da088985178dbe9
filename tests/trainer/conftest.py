"""Fork servers for all trainings of a test session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.launching import LaunchServer, write_text


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchServer]:
    server = LaunchServer(extra_path=str(Path(__file__).with_name("user_code")))
    yield server
    server.close()


@pytest.fixture(scope="session")
def script_server() -> Iterator[LaunchServer]:
    """Its Python scripts find their libraries imported: for what they train, not for how they are started.

    A process of its own, since those libraries would count as memory of every other training.
    """
    server = LaunchServer("scripts")
    yield server
    server.close()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_text(tmp_path_factory.mktemp("text")))
