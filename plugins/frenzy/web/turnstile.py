"""So many requests at once, the others wait their turn, and whoever would wait too long is told to come again.

Airflow's API server looks into its database from its event loop, too: at every caller's token, and when it notes what a
person did. Should requests in threads hold all connections, or SQLite's write lock, and need that loop to give them
back, then all of them stand still. So there are never more requests than connections, and on SQLite one writer at a
time. Tasks have a lane of their own: they do not wait behind pages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frenzy.web.errors import later, too_long
from frenzy.web.mount import URL_PREFIX

log = logging.getLogger(__name__)

NUM_AT_ONCE: Final = 8
PATIENCE_S: Final = 3.0
MAX_BODY_BYTES: Final = 16 * 1024**2
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TASKS: Final = "/execution/"
_HEALTH: Final = "/api/v2/monitor/health"
_FAILED: Final = 500

# The places that a request waits for one of; None: it waits for none.
Lanes = Callable[[Scope], asyncio.Semaphore | None]


def one_lane(num_at_once: int = NUM_AT_ONCE) -> Lanes:
    """All requests in one lane."""
    places = asyncio.Semaphore(num_at_once)
    return lambda scope: places


def lanes_of_airflow(*, one_writer: bool) -> Lanes:
    """Readers in one lane, tasks and writers in another, on SQLite one by one; Frenzy's app has its own."""
    readers, writers = asyncio.Semaphore(NUM_AT_ONCE), asyncio.Semaphore(1 if one_writer else NUM_AT_ONCE)

    def lane(scope: Scope) -> asyncio.Semaphore | None:
        path = scope["path"]
        if path.startswith(f"{URL_PREFIX}/") or path == _HEALTH:
            return None
        return writers if path.startswith(_TASKS) or scope["method"] not in _READING else readers

    return lane


class Turnstile:
    """ASGI middleware. A request has its turn until its reply begins: by then its transaction is over.

    It waits for one when all of its body is there: who sends or reads slowly holds up nobody.
    A failure of the database that was busy or away is answered with 503, not with 500.
    """

    def __init__(self, app: ASGIApp, *, lanes: Lanes, patience_s: float = PATIENCE_S) -> None:
        self._app, self._lanes, self._patience_s = app, lanes, patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await _whole_body(receive)
        if body is None:
            await too_long(MAX_BODY_BYTES)(scope, receive, send)
            return
        places = self._lanes(scope)
        if places is not None:
            try:
                async with asyncio.timeout(self._patience_s):
                    await places.acquire()
            except TimeoutError:
                await later("Too many requests wait for their turn.")(scope, receive, send)
                return
        await self._serve(scope, _told_again(body, receive), Reply(send, places))

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        try:
            await self._app(scope, receive, reply.send)
            await reply.finish()
        except (OperationalError, PoolTimeoutError) as error:
            if reply.has_begun:
                raise
            log.warning("%s %s: the database did not answer: %s", scope["method"], scope["path"], error)
            await later("The database did not answer.")(scope, receive, reply.send_at_once)
        except BaseException:
            await reply.finish()
            raise
        finally:
            reply.end_turn()


class Reply:
    """One reply on its way out. A 500 is kept back until it is known what it was for."""

    def __init__(self, send: Send, places: asyncio.Semaphore | None) -> None:
        self.send_at_once, self._places = send, places
        self.has_begun = False
        self._kept: list[Message] = []

    async def send(self, message: Message) -> None:
        self.end_turn()
        if self._kept or (message["type"] == "http.response.start" and message["status"] == _FAILED):
            self._kept.append(message)
            return
        self.has_begun = True
        await self.send_at_once(message)

    def end_turn(self) -> None:
        """Give the request's place back, once."""
        places, self._places = self._places, None
        if places is not None:
            places.release()

    async def finish(self) -> None:
        """Send what was kept back."""
        kept, self._kept = self._kept, []
        for message in kept:
            await self.send_at_once(message)


async def _whole_body(receive: Receive) -> list[Message] | None:
    """The messages that make up the request, or its caller's going away; None when it is too long."""
    messages: list[Message] = []
    size = 0
    while not messages or messages[-1].get("more_body", False):
        messages.append(await receive())
        size += len(messages[-1].get("body", b""))
        if size > MAX_BODY_BYTES:
            return None
    return messages


def _told_again(messages: list[Message], receive: Receive) -> Receive:
    """``messages``, then what comes after them."""

    async def next_one() -> Message:
        return messages.pop(0) if messages else await receive()

    return next_one
