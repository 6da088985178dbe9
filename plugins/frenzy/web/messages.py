"""Between HTTP and the core's values: bodies in, replies out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Request, Response
from pydantic import TypeAdapter, ValidationError

from frenzy.adapters.spec.job_spec import job_from_document
from frenzy.adapters.spec.refusals import violations_of
from frenzy.adapters.spec.yaml_core import TextLimits, load_json
from frenzy.app.services import Services
from frenzy.core.runs.protocol import RegisterRun
from frenzy.core.values.codec import VERSION_KEY, decode, dumps, encode
from frenzy.core.values.errors import ContractError, SpecError

T = TypeVar("T")
# The longest name there is in a path: an Airflow run's id.
MAX_NAME: Final = 250
REPORT: Final = TextLimits(64 * 1024, 5_000)
SPECIFICATION: Final = TextLimits(1024**2, 100_000)
"""A job with its model's config, which may list every parameter of the model; or a job's text."""
SWEEP: Final = TextLimits(4 * 1024**2, 200_000)
"""What was found of every lease that is held."""


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


def body_of(kind: type[T], limits: TextLimits = REPORT) -> Callable[..., T]:
    """A dependency that yields the request's body as a ``kind``. Raises ContractError, SpecError.

    FastAPI runs it in a thread: while it decodes, no other caller waits.
    """

    async def read(request: Request) -> bytes:
        return await _limited_body(request, limits.max_bytes)

    def decoded(content: bytes = Depends(read)) -> T:  # noqa: B008  # FastAPI's form
        return message_of(kind, content, limits)

    return decoded


def message_of(kind: type[T], content: bytes, limits: TextLimits = REPORT) -> T:
    """The message in ``content``: its form, its ranges, and a job in it, are checked as at every other entrance.

    Raises ContractError, SpecError.
    """
    document = load_json(content, limits)
    message = decode(kind, document)
    if kind is RegisterRun:
        job_from_document(document["job"])
    try:
        adapter_of(kind).validate_python({name: each for name, each in document.items() if name != VERSION_KEY})
    except ValidationError as error:
        raise SpecError(violations_of(error, lambda _: (), kind.__name__)) from error
    return message


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """What knows the ranges of a message's fields."""
    return TypeAdapter(kind)


async def _limited_body(request: Request, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise ContractError(f"body: longer than the {max_bytes} bytes that are accepted")
        parts.append(part)
    return b"".join(parts)


def refuse_odd_names(request: Request) -> None:
    """What no name in a path or query can be: no database or file system could be asked for it."""
    for value in (*request.path_params.values(), *request.query_params.values()):
        if len(value) > MAX_NAME or not value.isprintable():
            raise ContractError(f"{ascii(value[:80])}: names have at most {MAX_NAME} characters that can be printed")


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
