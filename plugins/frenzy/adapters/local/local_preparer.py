"""Prepares data in a process of this machine, which ends with the process that started it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from threading import Thread
from typing import IO, Final

from frenzy.adapters.local.worker_environment import preparing_environment
from frenzy.core.values.prepared_data import PreparingSpec
from frenzy.core.values.telemetry import printable
from frenzy.ports import PreparerAccount, WorkersState

_COMMAND: Final = (sys.executable, "-m", "frenzy.trainer.prepare_data", "--dies-with-parent")
_TERMINATE_S: Final = 5.0


class LocalPreparer:
    """environ: what the process may inherit, and where secrets are looked up."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._running: dict[str, subprocess.Popen[str]] = {}

    def found(self, run_key: str) -> int | None:
        """None: one that another process had started has ended with it."""

    def start(self, spec: PreparingSpec, tell: Callable[[str], None]) -> None:
        """Raises PermanentError for a secret that is not there, OSError where no process can be made."""
        process = subprocess.Popen(
            (*_COMMAND, "--request", spec.request),
            env={**preparing_environment(spec, self._environ), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._running[spec.run_key] = process
        assert process.stdout is not None
        Thread(target=_tell, args=(process.stdout, tell), name="frenzy-prepare", daemon=True).start()

    def account(self, spec: PreparingSpec) -> PreparerAccount:
        process = self._running.get(spec.run_key)
        if process is None:
            return PreparerAccount(state=WorkersState.NOT_STARTED)
        code = process.poll()
        if code is None:
            return PreparerAccount(state=WorkersState.ALIVE)
        return PreparerAccount(state=WorkersState.GONE, exit_code=128 - code if code < 0 else code)

    def stop(self, run_key: str) -> None:
        process = self._running.get(run_key)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_TERMINATE_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def remains(self) -> tuple[str, ...]:
        return tuple(sorted(key for key, process in self._running.items() if process.poll() is None))


def _tell(output: IO[str], tell: Callable[[str], None]) -> None:
    with output:
        for line in output:
            tell(printable(line).rstrip())
