"""What tests of the launcher of pods share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.adapters.k8s.launcher_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
