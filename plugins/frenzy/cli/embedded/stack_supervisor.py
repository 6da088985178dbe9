"""The process that keeps the embedded Airflow's components running.

    python -m frenzy.cli.embedded.stack_supervisor

``frenzy up`` starts it as a session of its own, with the variables of all components; ``frenzy down`` ends it first.
A component whose process is gone is started again, after 1 s, then 2, 4 ... 60 s while it does not live for a minute.
What is alive is never touched, whether it answers or not: its health page and ``frenzy up --status`` tell that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from frenzy.cli.embedded.health import Restarts
from frenzy.cli.embedded.stack import COMPONENTS, Stack
from frenzy.settings import load_settings

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
HEALTHY_AFTER_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5
_HEALTH_PATH: Final = "/health"
# Who asks for the page has a patience of its own, 5 s with most clients: an Airflow that is slower is not healthy.
_ANSWER_WITHIN_S: Final = 3.0


@dataclass(slots=True)
class Patience:
    """How long to wait before a component that died is started again. Times in seconds of one clock."""

    pause_s: float = FIRST_PAUSE_S
    started_s: float = float("-inf")
    died_s: float | None = None

    def is_over(self, now_s: float) -> bool:
        """Whether a component that is dead at ``now_s`` is to be started; asked at each look while it is."""
        if self.died_s is None:
            self.died_s = now_s
            lived = now_s - self.started_s >= HEALTHY_AFTER_S
            self.pause_s = FIRST_PAUSE_S if lived else min(2 * self.pause_s, LONGEST_PAUSE_S)
        return now_s - self.died_s >= self.pause_s

    def started(self, now_s: float) -> None:
        """The component was started at ``now_s``."""
        self.started_s, self.died_s = now_s, None


@dataclass(slots=True)
class Supervisor:
    """Looks after one stack's components; ``environ`` is what they are started with."""

    stack: Stack
    environ: Mapping[str, str]
    health_url: str
    restarts: dict[str, Restarts] = field(default_factory=dict)
    patience: dict[str, Patience] = field(default_factory=lambda: {name: Patience() for name in COMPONENTS})

    def run(self) -> None:
        """Look until this process is ended."""
        self._tell()
        while True:
            for name in COMPONENTS:
                try:
                    self.look(name)
                except (OSError, psutil.Error) as error:  # a full disk, no more processes: the next look may do
                    _say(f"{name} could not be started: {error}")
            time.sleep(_LOOK_EVERY_S)

    def look(self, name: str) -> None:
        """Start ``name`` again if it died long enough ago."""
        patience = self.patience[name]
        if not self.stack.is_dead(name):
            patience.died_s = None
        elif patience.is_over(time.monotonic()):
            self._revive(name)

    def _revive(self, name: str) -> None:
        how = self.stack.last_exit(name)
        self.patience[name].started(time.monotonic())
        pid = self.stack.revive(name, self.environ)
        if pid is None:
            return
        count = self.restarts.get(name, Restarts()).count + 1
        self.restarts[name] = Restarts(count=count, last_s=time.time(), last_exit=how)
        self._tell()
        _say(f"{name} died ({how}); restart {count}, pid {pid}")

    def _tell(self) -> None:
        path = self.stack.supervisor_state_path
        draft = path.with_name(f".{path.name}")
        restarts = {name: asdict(each) for name, each in self.restarts.items()}
        draft.write_text(json.dumps({"health_url": self.health_url, "restarts": restarts}), encoding="utf-8")
        draft.replace(path)


def _say(text: str) -> None:
    sys.stdout.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n")
    sys.stdout.flush()


def health_of(stack: Stack) -> tuple[HTTPStatus, dict[str, Any]]:
    """The health page: 200 when every component is healthy, else 503, and what each of them is.

    Without the logs' last lines: whoever can reach the port may read it.
    """
    parts = {
        each.name: {"pid": each.pid, "healthy": each.is_healthy, "restarts": each.restarts.count}
        for each in stack.status(_ANSWER_WITHIN_S)
    }
    healthy = all(part["healthy"] for part in parts.values())
    return (HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE), {"healthy": healthy, "components": parts}


def serve_health(stack: Stack) -> str:
    """Answer ``GET /health`` on this machine only, in threads of its own; where. Keeps the last port if it is free."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != _HEALTH_PATH:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            status, value = health_of(stack)
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Whoever asks every second would fill the log."""

    last = urlsplit(str(stack.supervisor_state().get("health_url", ""))).port
    try:
        server = ThreadingHTTPServer(("127.0.0.1", last or 0), Page)
    except OSError:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}{_HEALTH_PATH}"


def main() -> None:
    """Watch over the stack that the environment names, until ended."""
    stack = Stack(load_settings(os.environ))
    Supervisor(stack, dict(os.environ), serve_health(stack)).run()


if __name__ == "__main__":
    main()
