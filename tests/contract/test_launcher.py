"""The launchers that need no cluster keep the contract; for Kubernetes see tests/kubernetes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract import fake_trainer
from tests.contract.launcher_contract import LauncherContract, World
from tests.in_memory.launcher import FakeLauncher

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.local.local_launcher import LocalLauncher
from frenzy.ports import Launcher


def _local(folder: Path) -> Launcher:
    command = (sys.executable, str(Path(fake_trainer.__file__)))
    runs, state = FsspecRunStore(str(folder / "runs")), folder / "workers"
    return LocalLauncher(runs, state=state, environ=dict(os.environ), trainer_command=command)


LAUNCHERS: dict[str, Callable[[Path], Launcher]] = {"fake": lambda _: FakeLauncher(), "local": _local}


@pytest.fixture(params=sorted(LAUNCHERS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(LAUNCHERS[request.param](tmp_path), tmp_path / "runs")
    yield made
    made.end()


class TestLaunchers(LauncherContract):
    pass
