"""Between HTTP and the core's values: bodies in, replies out."""

from __future__ import annotations

import json
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, Final

from fastapi import Request, Response
from pydantic import TypeAdapter, ValidationError

from frenzy.adapters.spec.job_spec import job_from_document
from frenzy.adapters.spec.refusals import violations_of
from frenzy.adapters.spec.yaml_core import load_json
from frenzy.app.services import Services
from frenzy.core.runs.protocol import RegisterRun
from frenzy.core.values.codec import VERSION_KEY, TextLimits, decode, dumps, encode
from frenzy.core.values.errors import ContractError, SpecError

# The longest name there is in a path: an Airflow run's id.
MAX_NAME: Final = 250


def services_of(request: Request) -> Services:
    """The services the app was made with; built on the first request."""
    services: Services = request.app.state.services()
    return services


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody changed, for Airflow's audit log. event: ``frenzy_<verb>``; ids: of the DAG (run) concerned."""

    who: str
    event: str
    dag_id: str
    run_id: str | None = None
    particulars: str = ""


async def body_of(request: Request) -> bytes:
    """The whole body, which the turnstile has received and limited."""
    return await request.body()


def message_of(kind: Any, content: bytes, limits: TextLimits) -> Any:
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


def refuse_odd_names(request: Request) -> None:
    """What no name in a path or query can be: no database or file system could be asked for it."""
    for value in (*request.path_params.values(), *request.query_params.values()):
        if len(value) > MAX_NAME or not value.isprintable():
            raise ContractError(f"{ascii(value[:80])}: names have at most {MAX_NAME} characters that can be printed")


def reply(value: object) -> Response:
    """``value`` as JSON, where a message carries the schema version; a text as it is; None without content."""
    if value is None:
        return Response(status_code=204)
    if isinstance(value, str):
        return text_reply(value)
    text = dumps(value) if is_dataclass(value) else json.dumps(encode(value), allow_nan=False)
    return Response(
        text, media_type="application/json", headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    )


def text_reply(text: str, media_type: str = "text/plain; charset=utf-8") -> Response:
    """``text`` as it is."""
    return Response(
        text, media_type=media_type, headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    )
