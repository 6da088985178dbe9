"""One browser, and one installation whose runs were played, for all tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.browser import MISSING, Browser, browser, program
from tests.pages.stage import Stage, stage


@pytest.fixture(scope="session")
def page() -> Iterator[Browser]:
    if program() is None:
        pytest.skip(MISSING)
    with browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def played() -> Iterator[Stage]:
    with stage() as served:
        yield served
