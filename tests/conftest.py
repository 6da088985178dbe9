"""What every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests import postgres

# A busy machine is no reason to fail: hypothesis times single examples, pytest-timeout whole tests.
# The same examples every time, so that a change is judged by the change; --hypothesis-profile=explore draws new ones.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", patient)
settings.register_profile("frenzy", patient, derandomize=True)
settings.load_profile("frenzy")


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
