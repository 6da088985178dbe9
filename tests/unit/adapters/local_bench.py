"""A local launcher over the fake trainer: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.contract import fake_trainer, values
from tests.contract.eventually import eventually

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.local.attempt_home import AttemptHome
from frenzy.adapters.local.local_launcher import LocalLauncher
from frenzy.adapters.local.worker_processes import Marks, processes_of, start_ticks
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.ports import WorkersState

FAKE = (sys.executable, str(Path(fake_trainer.__file__)))


def marks(spec: LaunchSpec) -> Marks:
    return Marks(run_dir=spec.run_dir, run_key=spec.run_key, attempt=spec.attempt)


class Bench:
    """A local launcher over the fake trainer, and what its processes are up to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "workers"
        self.store = FsspecRunStore(str(folder / "runs"))
        self.launcher = self.other()
        self.specs: list[LaunchSpec] = []

    def other(self, trainer_command: tuple[str, ...] = FAKE, **environ: str) -> LocalLauncher:
        """The launcher of another process of the same installation."""
        environ = {**os.environ, **environ}
        return LocalLauncher(self.store, state=self.state, environ=environ, trainer_command=trainer_command)

    def home(self, spec: LaunchSpec) -> AttemptHome:
        return AttemptHome.of(self.state, marks(spec))

    def spec(self, kind: str, *, ranks: int = 0, key: str | None = None, **env: str) -> LaunchSpec:
        key = key or uuid.uuid4().hex[:12]
        spec = values.launch_spec(self.store.run_dir(key), run_key=key)
        env = {"FAKE_TRAINER": kind, "FAKE_RANKS": str(ranks), "FAKE_STARTS": str(self.folder / "starts"), **env}
        self.specs.append(replace(spec, job=replace(spec.job, env=env)))
        return self.specs[-1]

    def started(self, spec: LaunchSpec) -> list[int]:
        """Launch, and wait until the node launcher has its ranks; their pids, the launcher's first."""
        self.launcher.launch(spec)
        return [int(pid) for pid in eventually(self.starts)[-1].split()]

    def starts(self) -> list[str]:
        place = self.folder / "starts"
        return [line for line in place.read_text().splitlines() if line] if place.exists() else []

    def supervisor(self, spec: LaunchSpec) -> int:
        record = self.home(spec).record()
        assert record is not None and record.pid is not None
        return record.pid

    def result(self, spec: LaunchSpec) -> AttemptResult:
        """The result, once the workers are gone."""
        eventually(lambda: self.launcher.state(spec) is WorkersState.GONE)
        result = self.store.result(spec.run_key, spec.attempt)
        assert result is not None
        return result


@contextmanager
def benched(folder: Path) -> Iterator[Bench]:
    """A bench whose workers have ended at the end."""
    made = Bench(folder)
    yield made
    for spec in made.specs:
        made.launcher.stop(spec, grace_s=0)
        eventually(lambda spec=spec: made.launcher.state(spec) is WorkersState.GONE)
        assert not processes_of(marks(spec))


def kill_supervisor(bench: Bench, spec: LaunchSpec) -> None:
    pid = bench.supervisor(spec)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: start_ticks(pid) is None)


def are_gone(pids: list[int]) -> bool:
    return all(start_ticks(pid) is None for pid in pids)


@contextmanager
def stranger(spec: LaunchSpec, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A live process with the attempt's marks that no record tells of."""
    environ = {**marks(spec).environment(), **environ}
    process = subprocess.Popen(["/bin/sleep", "3600"], env={k: v for k, v in environ.items() if v})
    try:
        yield process
    finally:
        process.kill()
        process.wait()
