"""An embedded Airflow as tests use it: it lasts as long as a block, is called as one of its users, and loses parts.

with Stack.running(home) as stack:
    httpx.get(f"{stack.base_url}/api/v2/dags", headers=stack.headers())
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx

from frenzy.cli.embedded import stack as embedded
from frenzy.cli.embedded.airflow_env import ADMIN
from frenzy.cli.embedded.stack_processes import interrupted_by, kill_processes
from frenzy.settings import load_settings


class Stack(embedded.Stack):
    """One home's Airflow, with what only tests do to it."""

    @classmethod
    @contextmanager
    def running(cls, home: Path, port: int | None = None, env: Mapping[str, str] | None = None) -> Iterator[Self]:
        """A started stack that is stopped at the end, whatever happens; settings come from ``env``.

        A signal that asks this process to end is turned into KeyboardInterrupt for the block.
        """
        asked = {**(env or {}), "FRENZY_HOME": str(home), "FRENZY_PORT": str(port or "")}
        stack = cls(load_settings(asked), {**os.environ, **asked})
        with interrupted_by(signal.SIGTERM, signal.SIGHUP):
            try:
                stack.start()
                yield stack
            finally:
                stack.stop()

    def token(self, user: str = ADMIN) -> str:
        """A fresh API token of ``user``. Raises httpx.HTTPError when the server does not give one."""
        login = {"username": user, "password": self.password(user)}
        answer = httpx.post(f"{self.base_url}/auth/token", json=login, timeout=30.0, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def headers(self, user: str = ADMIN) -> dict[str, str]:
        """The authorization header for calls as ``user``."""
        return {"Authorization": f"Bearer {self.token(user)}"}

    def kill(self, name: str) -> None:
        """Kill one component with SIGKILL, and all it started that has not left its session; for good."""
        with self._lock():
            record = self._record(name)
            kill_processes(record.members() if record else ())
            self._forget(name)

    def restart(self, name: str) -> None:
        """Stop one component if it runs, start it and wait until it is healthy. Raises StackError."""
        with self._lock():
            self._end([name], embedded._STOP_TIMEOUT_S)
            self._start_component(name, self.environment())
        self._wait_until_healthy((name,))
