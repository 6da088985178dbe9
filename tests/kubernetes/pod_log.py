"""The log of a container, and the kubelet's way of serving it."""

from __future__ import annotations

import asyncio
import datetime
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping

from aiohttp import web


class PodLog:
    """Lines with the time they were written; to be used in one event loop."""

    def __init__(self) -> None:
        self._lines: list[tuple[float, str]] = []
        self._is_closed = False
        self._changed = asyncio.Event()

    def add(self, line: str) -> None:
        self._lines.append((time.time(), line))
        self._notify()

    def close(self) -> None:
        """The container has ended: who follows has seen all."""
        self._is_closed = True
        self._notify()

    async def lines(self, *, since_s: float, last: int | None, follow: bool) -> AsyncIterator[tuple[float, str]]:
        """The last ``last`` lines written after ``since_s``; with ``follow`` also new ones, until it is closed."""
        wanted = [each for each in self._lines if each[0] >= since_s]
        seen = len(self._lines)
        for each in wanted if last is None else wanted[len(wanted) - min(last, len(wanted)) :]:
            yield each
        while follow:
            changed = self._changed
            for each in self._lines[seen:]:
                yield each
            seen = len(self._lines)
            if self._is_closed:
                return
            await changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def log_endpoint(find: Callable[[str, str], PodLog | None]) -> web.Application:
    """What the API server asks a kubelet for `pods/log`; ``find`` gives the log of (namespace, pod)."""

    connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

    async def hang_up(_application: web.Application) -> None:
        # The API server keeps its connections, and a TLS connection takes its time to part politely.
        for each in connections:
            each.abort()

    async def serve(request: web.Request) -> web.StreamResponse:
        log = find(request.match_info["namespace"], request.match_info["pod"])
        if log is None:
            raise web.HTTPNotFound(text="no such pod on this node")
        assert request.transport is not None
        connections.add(request.transport)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for written_s, line in log.lines(**_asked(request.query)):
            stamp = f"{_rfc3339(written_s)} " if request.query.get("timestamps") == "true" else ""
            await response.write(f"{stamp}{line}\n".encode())
        return response

    application = web.Application()
    application.on_shutdown.append(hang_up)
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", serve)
    return application


def _asked(query: Mapping[str, str]) -> dict[str, float | int | bool | None]:
    since_s = 0.0
    if "sinceSeconds" in query:
        since_s = time.time() - float(query["sinceSeconds"])
    elif "sinceTime" in query:
        since_s = datetime.datetime.fromisoformat(query["sinceTime"]).timestamp()
    last = int(query["tailLines"]) if "tailLines" in query else None
    return {"since_s": since_s, "last": last, "follow": query.get("follow") == "true"}


def _rfc3339(at_s: float) -> str:
    """With nine digits, as a kubelet writes it."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
