"""So many requests at once, the others wait their turn, and whoever would wait too long is asked to come again.

Airflow's API server looks into its database from its event loop, too: at every caller's token, and when it notes what a
person did. Should requests in threads hold all connections, or SQLite's write lock, and need that loop to give them
back, then all of them stand still. So there are never more requests than connections, and on SQLite one writer at a
time. Tasks have a lane of their own: they do not wait behind pages, and on SQLite behind two other writers at most.

Bodies are received before it is known who sends them. So they are limited one by one, all together, and in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frenzy.api import URL_PREFIX
from frenzy.web.error_replies import later, too_long, too_slow

log = logging.getLogger(__name__)

NUM_AT_ONCE: Final = 8
# With the others no more than the ledger has connections.
NUM_OF_OUR_TASKS: Final = 7
PATIENCE_S: Final = 3.0
NUM_OTHER_WRITERS: Final = 2
NUM_LOGINS: Final = 2
MAX_BODY_BYTES: Final = 4 * 1024**2
# Airflow sets no limit on what a task hands to the next one (XCom).
MAX_TASK_BODY_BYTES: Final = 16 * 1024**2
# Of all bodies together, without the first bytes of each: as many uvicorn keeps of every connection anyway. So who
# fills the room with long bodies does not keep short ones out.
ROOM_BYTES: Final = 64 * 1024**2
FREE_BYTES: Final = 64 * 1024
BODY_TIMEOUT_S: Final = 30.0
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TASKS: Final = "/execution/"
_LOGIN: Final = "/auth/"
_HEALTH: Final = "/api/v2/monitor/health"
_FAILED: Final = 500

# What a request needs a place of, one after the other, before its turn.
Lanes = Callable[[Scope], tuple[asyncio.Semaphore, ...]]


def lanes_of_frenzy(is_of_tasks: Callable[[Scope], bool], num_at_once: int = NUM_AT_ONCE) -> Lanes:
    """Frenzy's own tasks and all others apart."""
    tasks, others = asyncio.Semaphore(NUM_OF_OUR_TASKS), asyncio.Semaphore(num_at_once)
    return lambda scope: (tasks,) if is_of_tasks(scope) else (others,)


def lanes_of_airflow(*, one_writer: bool) -> Lanes:
    """Readers, tasks and other writers apart; on SQLite one of the writers at a time. Frenzy's app has its own lanes.

    Writers wait apart until there are few of them among the tasks. So do logins, which anybody may try, among writers.
    """
    readers, logins = asyncio.Semaphore(NUM_AT_ONCE), asyncio.Semaphore(NUM_LOGINS)
    tasks = asyncio.Semaphore(1 if one_writer else NUM_AT_ONCE)
    others = asyncio.Semaphore(NUM_OTHER_WRITERS if one_writer else NUM_AT_ONCE)
    writers = (others, tasks) if one_writer else (others,)

    def lanes(scope: Scope) -> tuple[asyncio.Semaphore, ...]:
        path = scope["path"]
        if path.startswith(f"{URL_PREFIX}/") or path == _HEALTH:
            return ()
        if path.startswith(_TASKS):
            return (tasks,)
        if scope["method"] in _READING:
            return (readers,)
        return (logins, *writers) if path.startswith(_LOGIN) else writers

    return lanes


class Turnstile:
    """ASGI middleware. A request has its turn until its reply begins: by then its transaction is over.

    It waits for one when all of its body is there: who sends or reads slowly holds up nobody.
    A failure of the database that was busy or away is answered with 503, not with 500.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        lanes: Lanes,
        patience_s: float = PATIENCE_S,
        body_timeout_s: float = BODY_TIMEOUT_S,
        room_bytes: int = ROOM_BYTES,
    ) -> None:
        self._app, self._lanes, self._patience_s = app, lanes, patience_s
        self._body_timeout_s, self._room = body_timeout_s, Room(room_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            with ExitStack() as kept, ExitStack() as turn:
                message = await self._whole(scope, receive, kept)
                await self._wait(scope, turn)
                await self._serve(scope, _replayed(message, receive), Reply(send, turn))
        except _Refused as refused:
            await refused.reply(scope, receive, send)

    async def _whole(self, scope: Scope, receive: Receive, kept: ExitStack) -> Message:
        """The request as one message, or that its caller went away. kept: gives the room for it back."""
        body = Body(self._room, MAX_TASK_BODY_BYTES if scope["path"].startswith(_TASKS) else MAX_BODY_BYTES)
        kept.callback(body.leave)
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await body.received(receive)
        except TimeoutError:
            raise _Refused(too_slow(self._body_timeout_s)) from None

    async def _wait(self, scope: Scope, turn: ExitStack) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                for places in self._lanes(scope):
                    await places.acquire()
                    turn.callback(places.release)
        except TimeoutError:
            raise _Refused(later("Too many requests wait for their turn: nothing was done for this one.")) from None

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


class Reply:
    """One reply on its way out. A 500 is kept back until it is known what it was for."""

    def __init__(self, send: Send, turn: ExitStack) -> None:
        self.send_at_once, self.end_turn = send, turn.close
        self.has_begun = False
        self._kept: list[Message] = []

    async def send(self, message: Message) -> None:
        self.end_turn()
        if self._kept or (message["type"] == "http.response.start" and message["status"] == _FAILED):
            self._kept.append(message)
            return
        self.has_begun = True
        await self.send_at_once(message)

    async def finish(self) -> None:
        """Send what was kept back."""
        kept, self._kept = self._kept, []
        for message in kept:
            await self.send_at_once(message)


class Room:
    """How many bytes of bodies may still come, of all requests together."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes


class Body:
    """A request's body while it is received and used."""

    def __init__(self, room: Room, max_bytes: int) -> None:
        self._room, self._max_bytes, self._size = room, max_bytes, 0

    async def received(self, receive: Receive) -> Message:
        """All of it as one message, or that its caller went away; raises _Refused when it is too long."""
        whole = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return message
            whole += message.get("body", b"")
            self._take(len(whole))
            if not message.get("more_body", False):
                return {"type": "http.request", "body": bytes(whole), "more_body": False}

    def leave(self) -> None:
        """Give the room back."""
        self._room.left += _counted(self._size)

    def _take(self, size: int) -> None:
        self._room.left -= _counted(size) - _counted(self._size)
        self._size = size
        if size > self._max_bytes:
            raise _Refused(too_long(self._max_bytes))
        if self._room.left < 0 and _counted(size):
            raise _Refused(later("Too many long requests at once."))


class _Refused(Exception):
    def __init__(self, reply: Response) -> None:
        self.reply = reply


def _counted(size: int) -> int:
    return max(0, size - FREE_BYTES)


def _replayed(message: Message, receive: Receive) -> Receive:
    """``message``, then what comes after it."""
    left = [message]

    async def next_one() -> Message:
        return left.pop() if left else await receive()

    return next_one
