"""Between HTTP and the core's values: bodies in, replies out."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from fastapi import Depends, Request, Response

from frenzy.app.services import Services
from frenzy.core.codec import dumps, encode, loads
from frenzy.core.errors import ContractError

T = TypeVar("T")
MAX_BODY_BYTES: Final = 16 * 1024**2


def services_of(request: Request) -> Services:
    """The services the app was made with; built on the first request."""
    services: Services = request.app.state.services()
    return services


def job_watcher_of(request: Request) -> Callable[[str], None]:
    """Whom to tell that a job's stored spec changed."""
    watcher: Callable[[str], None] = request.app.state.on_job_changed
    return watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What somebody changed, for Airflow's audit log. event: ``frenzy_<verb>``; ids: of the DAG (run) concerned."""

    who: str
    event: str
    dag_id: str
    run_id: str | None = None
    particulars: str = ""


def act_watcher_of(request: Request) -> Callable[[Act], None]:
    """Whom to tell who changed what."""
    watcher: Callable[[Act], None] = request.app.state.on_act
    return watcher


def body_of(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency that yields the request's body as a ``kind``. Raises ContractError."""

    async def read(request: Request) -> T:
        return loads(kind, await _limited_body(request))

    return read


async def _limited_body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ContractError(f"body: longer than the {MAX_BODY_BYTES} bytes that are accepted")
        parts.append(part)
    return b"".join(parts)


def reply(value: object) -> Response:
    """``value`` as JSON; a single message carries the schema version."""
    text = json.dumps(encode(value), allow_nan=False) if isinstance(value, tuple | list) else dumps(value)
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def text_reply(text: str, media_type: str = "text/plain; charset=utf-8") -> Response:
    """``text`` as it is."""
    return Response(text, media_type=media_type, headers={"Cache-Control": "no-store"})


ServicesOf = Annotated[Services, Depends(services_of)]
ActWatcher = Annotated[Callable[[Act], None], Depends(act_watcher_of)]
JobWatcher = Annotated[Callable[[str], None], Depends(job_watcher_of)]
