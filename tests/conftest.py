"""What every test shares."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests import postgres
from tests.config_reader import ConfigReader

# Set to "postgresql" or "sqlite": the database of all Airflows that tests start, but for tests of one database.
DATABASE_VARIABLE = "FRENZY_TEST_STACK"

# A third of the time in which tests are collected went into a search for garbage, of which imports leave none.
gc.disable()

# A busy machine is no reason to fail: hypothesis times single examples, pytest-timeout whole tests.
# The same examples every time, so that a change is judged by the change, and half of hypothesis' number: the same ones
# find nothing new. --hypothesis-profile=explore draws others.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", patient)
settings.register_profile("frenzy", patient, derandomize=True, max_examples=50)
settings.load_profile("frenzy")


def pytest_collection_finish() -> None:
    """From here on there is garbage. What is there now stays, and is not looked through again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A PostgreSQL server for all tests that need one; without one they are skipped."""
    if not postgres.is_available():
        pytest.skip(postgres.MISSING)
    with postgres.running_server() as server:
        yield server


@pytest.fixture
def postgres_database(postgres_server: postgres.Server) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop(url)


@pytest.fixture(scope="session")
def _config_reader() -> Iterator[ConfigReader]:
    reader = ConfigReader()
    yield reader
    reader.close()


@pytest.fixture
def one_config_reader(_config_reader: ConfigReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process reads the configs of all tests that use this."""
    from frenzy.adapters import model_config

    monkeypatch.setattr(model_config, "ask", _config_reader.ask)


@pytest.fixture(scope="session")
def stack_settings(request: pytest.FixtureRequest) -> Iterator[Callable[[str], dict[str, str]]]:
    """stack_settings("sqlite"): settings of an Airflow for a new database of that kind, or that of FRENZY_TEST_STACK.

    "postgresql" is SQLite where no server can be started, unless FRENZY_TEST_STACK insists.
    """
    wished = os.environ.get(DATABASE_VARIABLE)
    assert wished in {None, "sqlite", "postgresql"}, f"{DATABASE_VARIABLE}={wished} is neither sqlite nor postgresql"
    has_server = wished == "postgresql" or (wished is None and postgres.is_available())
    server: postgres.Server | None = request.getfixturevalue("postgres_server") if has_server else None
    made: list[str] = []

    def new(usual: str) -> dict[str, str]:
        if server is None or (wished or usual) == "sqlite":
            return {}
        made.append(server.new_database())
        return {"FRENZY_DATABASE": made[-1]}

    yield new
    for url in made:
        assert server is not None
        server.drop(url)
