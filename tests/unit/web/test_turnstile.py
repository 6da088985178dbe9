"""Requests take turns, nobody waits for long, and a busy database is no failure of the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.types import ASGIApp
from tests.unit.installation import in_memory_services
from tests.unit.web.conftest import PEOPLE, FakePerson

from frenzy.web.application import create_app
from frenzy.web.turnstile import NUM_AT_ONCE, Lanes, Turnstile, lanes_of_airflow, lanes_of_frenzy

BUSY = [OperationalError("COMMIT", {}, Exception("database is locked")), PoolTimeoutError("QueuePool limit")]


def one_lane(num_at_once: int = NUM_AT_ONCE) -> Lanes:
    """Of people."""
    return lanes_of_frenzy(lambda scope: False, num_at_once)


class Door:
    """An app whose requests stay inside until told to leave; counts how many are inside."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.most = 0
        self.leave = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside.append(f"{scope['method']} {scope['path']}")
        self.most = max(self.most, len(self.inside))
        await self.leave.wait()
        self.inside.pop()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://server"
    )


def played(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 20))


async def until(check: Callable[[], bool]) -> None:
    while not check():
        await asyncio.sleep(0.001)


def test_no_more_requests_are_inside_than_there_are_places_and_all_get_their_answer() -> None:
    async def scene() -> None:
        door = Door()
        async with client_of(Turnstile(door, lanes=one_lane(3))) as client:
            asked = [asyncio.create_task(client.get("/api/v2/dags")) for _ in range(9)]
            await until(lambda: len(door.inside) == 3)
            door.leave.set()
            assert [(await each).status_code for each in asked] == [200] * 9
            assert door.most == 3

    played(scene)


def test_who_waits_too_long_is_told_to_come_again() -> None:
    async def scene() -> None:
        door = Door()
        async with client_of(Turnstile(door, lanes=one_lane(1), patience_s=0.05)) as client:
            first = asyncio.create_task(client.get("/frenzy/api/v1/runs"))
            await until(lambda: bool(door.inside))
            late = await client.get("/frenzy/api/v1/runs")
            assert late.status_code == 503
            assert int(late.headers["Retry-After"]) > 0
            assert late.json()["detail"]["code"] == "LEDGER_BUSY"
            assert "nothing was done" in late.json()["detail"]["message"]
            assert late.json()["detail"]["remedy"] == "Try again in a moment."
            door.leave.set()
            assert (await first).status_code == 200
            assert (await client.get("/frenzy/api/v1/runs")).status_code == 200, "the place is free again"

    played(scene)


def test_writers_of_airflow_take_turns_while_readers_health_and_our_own_app_pass() -> None:
    async def scene() -> None:
        door = Door()
        async with client_of(Turnstile(door, lanes=lanes_of_airflow(one_writer=True))) as client:
            writers = [asyncio.create_task(client.post("/api/v2/dags/a/dagRuns")) for _ in range(2)]
            tasks = asyncio.create_task(client.patch("/execution/task-instances/1/state"))
            others = [asyncio.create_task(client.get("/api/v2/dags")), asyncio.create_task(client.post("/frenzy/runs"))]
            await until(lambda: len(door.inside) == 3)
            await asyncio.sleep(0.05)
            assert sorted(door.inside) == ["GET /api/v2/dags", "POST /api/v2/dags/a/dagRuns", "POST /frenzy/runs"]
            door.leave.set()
            assert {(await each).status_code for each in (*writers, tasks, *others)} == {200}

    played(scene)


def test_reports_of_tasks_do_not_wait_behind_peoples_pages() -> None:
    services, leave = in_memory_services(), threading.Event()
    slow: list[str] = []

    def slow_at_first() -> FakePerson:
        if len(slow) < NUM_AT_ONCE:
            slow.append("a page")
            leave.wait(10)
        return PEOPLE["op"]

    async def scene() -> None:
        outer = FastAPI()
        outer.mount("/frenzy", create_app(lambda: services, slow_at_first))
        async with client_of(outer) as client:
            pages = [asyncio.create_task(client.get("/frenzy/api/v1/queue")) for _ in range(NUM_AT_ONCE)]
            await until(lambda: len(slow) == NUM_AT_ONCE)
            report = await client.post("/frenzy/api/v1/runs/0123456789ab/enqueue")
            leave.set()
            assert report.status_code == 404, "there is no such run, and it was looked for at once"
            assert {(await each).status_code for each in pages} == {200}

    played(scene)


def test_a_caller_that_goes_away_while_it_waits_leaves_its_place() -> None:
    async def scene() -> None:
        door = Door()
        async with client_of(Turnstile(door, lanes=one_lane(1))) as client:
            first = asyncio.create_task(client.get("/one"))
            await until(lambda: bool(door.inside))
            second = asyncio.create_task(client.post("/two"))
            await asyncio.sleep(0.05)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            door.leave.set()
            await first
            assert (await client.post("/three")).status_code == 200

    played(scene)


def test_who_sends_its_request_slowly_holds_up_nobody() -> None:
    async def scene() -> None:
        door, never = Door(), asyncio.Event()
        door.leave.set()

        app = Turnstile(door, lanes=one_lane(1), patience_s=0.05)

        async def trickle() -> dict[str, Any]:
            await never.wait()
            return {}

        first = iter([{"type": "http.request", "body": b"{", "more_body": True}])

        async def receive() -> dict[str, Any]:
            return next(first, None) or await trickle()

        scope = {"type": "http", "method": "POST", "path": "/slow", "headers": []}
        slow_one = asyncio.create_task(app(scope, receive, cast(Any, None)))
        async with client_of(app) as client:
            await asyncio.sleep(0.01)
            assert (await client.post("/quick", content=b"{}")).status_code == 200
        slow_one.cancel()

    played(scene)


def test_the_body_reaches_the_app_whole() -> None:
    async def scene() -> None:
        app = FastAPI()

        @app.post("/size")
        async def size(request: Request) -> int:
            return len(await request.body())

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 1000

        async with client_of(Turnstile(app, lanes=one_lane())) as client:
            assert (await client.post("/size", content=parts())).json() == 3000

    played(scene)


def test_a_body_that_is_far_too_long_is_refused_before_it_has_a_turn() -> None:
    async def scene() -> None:
        door = Door()

        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 2**20

        async with client_of(Turnstile(door, lanes=one_lane())) as client:
            assert (await client.post("/size", content=parts())).status_code == 413
        assert door.most == 0

    played(scene)


def test_a_body_that_comes_byte_by_byte_is_one_message_for_the_app() -> None:
    async def scene() -> None:
        asked: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            while not asked or asked[-1]["more_body"]:
                asked.append(await receive())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(50_000):
                yield b"x"

        async with client_of(Turnstile(app, lanes=one_lane())) as client:
            assert (await client.post("/auth/token", content=parts())).status_code == 200
        assert [len(each["body"]) for each in asked] == [50_000]

    played(scene)


@pytest.mark.parametrize(
    ("path", "mebibytes", "status"),
    [
        ("/auth/token", 4, 200),
        ("/auth/token", 5, 413),
        ("/api/v2/variables", 5, 413),
        ("/execution/xcoms/a/b/c/d", 16, 200),
        ("/execution/xcoms/a/b/c/d", 17, 413),
    ],
)
def test_only_tasks_may_send_long_bodies(path: str, mebibytes: int, status: int) -> None:
    async def scene() -> None:
        door = Door()
        door.leave.set()
        async with client_of(Turnstile(door, lanes=one_lane())) as client:
            assert (await client.post(path, content=b"x" * mebibytes * 2**20)).status_code == status

    played(scene)


def test_long_bodies_of_all_callers_share_one_room_and_short_ones_need_none() -> None:
    async def scene() -> None:
        door, never = Door(), asyncio.Event()
        door.leave.set()

        async def long_and_slow() -> AsyncIterator[bytes]:
            yield b"x" * 600_000
            yield b"x" * 300_000
            await never.wait()

        async with client_of(Turnstile(door, lanes=one_lane(), room_bytes=10**6)) as client:
            holding = asyncio.create_task(client.post("/auth/token", content=long_and_slow()))
            await asyncio.sleep(0.05)
            late = await client.post("/auth/token", content=b"x" * 600_000)
            assert (late.status_code, "Retry-After" in late.headers) == (503, True)
            assert (await client.post("/execution/task", content=b"x" * 60_000)).status_code == 200
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            again = [(await client.post("/auth/token", content=b"x" * 900_000)).status_code for _ in range(3)]
            assert again == [200] * 3, "each gave its room back"

    played(scene)


def test_a_body_that_does_not_come_is_waited_for_so_long_only() -> None:
    async def scene() -> None:
        door = Door()

        async def drops() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(0.01)

        async with client_of(Turnstile(door, lanes=one_lane(), body_timeout_s=0.1)) as client:
            slow = await client.post("/auth/token", content=drops())
            assert (slow.status_code, slow.json()["detail"]["code"]) == (408, "REQUEST_TIMEOUT")
        assert door.most == 0

    played(scene)


@pytest.mark.parametrize("flood", ["/auth/token", "/api/v2/dags/a/dagRuns"])
def test_a_task_waits_behind_two_other_writers_at_most(flood: str) -> None:
    served = served_in_a_flood(flood, "/execution/task")
    assert served.index("/execution/task") <= 2


def test_who_writes_waits_behind_two_logins_at_most() -> None:
    served = served_in_a_flood("/auth/token", "/api/v2/dags/a/dagRuns")
    assert served.index("/api/v2/dags/a/dagRuns") <= 2


def served_in_a_flood(flood: str, path: str) -> list[str]:
    """In which order 40 requests for one path, and one for another that comes after them, are served on SQLite."""
    served: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["path"])
        await asyncio.sleep(0.005)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def scene() -> None:
        async with client_of(Turnstile(app, lanes=lanes_of_airflow(one_writer=True))) as client:
            crowd = [asyncio.create_task(client.post(flood)) for _ in range(40)]
            await until(lambda: bool(served))
            assert (await client.post(path)).status_code == 200
            await asyncio.gather(*crowd)

    played(scene)
    return served


@pytest.mark.parametrize("error", BUSY)
@pytest.mark.parametrize("path", ["/top", "/execution/inner"])
def test_a_database_that_is_busy_means_later_also_in_an_app_that_says_500_itself(error: Exception, path: str) -> None:
    async def scene() -> None:
        async with client_of(Turnstile(failing(error), lanes=one_lane())) as client:
            answer = await client.get(path)
            assert answer.status_code == 503
            assert "Retry-After" in answer.headers

    played(scene)


def test_any_other_failure_stays_what_it_is() -> None:
    async def scene() -> None:
        async with client_of(Turnstile(failing(ValueError("our fault")), lanes=one_lane())) as client:
            assert (await client.get("/execution/inner")).status_code == 500

    played(scene)


def failing(error: Exception) -> FastAPI:
    """An app, and one mounted in it that answers failures itself and then hands them on, as Airflow's do."""
    app, inner = FastAPI(), FastAPI()

    def fail() -> None:
        raise error

    app.add_api_route("/top", fail)
    inner.add_api_route("/inner", fail)
    app.mount("/execution", inner)
    return app
