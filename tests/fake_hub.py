"""A hub of models on this machine: files by commit, branches, and gates, asked by the hub's own client."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class FakeHub:
    """files: of each model by commit. branches: commit by name. fetched: how often each file was sent.

    away_after: the file after which it answers nothing more.
    """

    files: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    fetched: Counter[str] = field(default_factory=Counter)
    away_after: str = ""
    is_away: bool = False
    url: str = ""

    def push(self, model: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Put a commit at the branch's end; its hash."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self.files.setdefault(model, {})[commit] = files
        self.branches.setdefault(model, {})[branch] = commit
        return commit

    def find(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of what lies at ``path``."""
        model, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        if model not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if model in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        commit = self.branches[model].get(revision, revision)
        if commit not in self.files[model]:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        content = self.files[model][commit].get(name)
        if content is None:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        digest = hashlib.sha256(content).hexdigest()
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}, content


@contextmanager
def serving() -> Iterator[FakeHub]:
    """A hub at ``url`` until the context is left."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_content=False)

        def do_GET(self) -> None:
            self._answer(with_content=True)

        def _answer(self, *, with_content: bool) -> None:
            if hub.is_away:
                self.close_connection = True
                return
            status, headers, content = hub.find(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_content and status == 200:
                hub.fetched[self.path.rpartition("/")[2]] += 1
                self.wfile.write(content)
                hub.is_away = self.path.endswith(f"/{hub.away_after}")

        def log_message(self, format: str, *arguments: object) -> None:
            """Tests need none of it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
