"""What tests of the local launcher share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.adapters.local_bench import Bench, benched


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with benched(tmp_path) as made:
        yield made
