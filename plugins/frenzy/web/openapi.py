"""The API described for other programs: OpenAPI 3.1, made of the table of endpoints and of the messages' own types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from frenzy.api.declaration import Endpoint
from frenzy.api.endpoints import ENDPOINTS
from frenzy.core.values.codec import SCHEMA_VERSION, VERSION_KEY, encode
from frenzy.core.values.errors import Reason, Violation
from frenzy.web.messages import adapter_of

_NOT_JSON: Final = frozenset({None, str, bytes})
_ERROR: Final = {
    "type": "object",
    "required": ["detail"],
    "properties": {
        "detail": {
            "type": "object",
            "required": ["code", "message", "remedy", "violations"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "remedy": {"type": ["string", "null"]},
                "violations": {"type": "array", "items": {"$ref": "#/components/schemas/Violation"}},
            },
        }
    },
}
_STATUSES: Final = {
    "400": "The request or the specification is refused.",
    "401": "Nobody has logged in.",
    "403": "The caller may not do this.",
    "404": "There is no such run, attempt or job.",
    "409": "The ledger moved on meanwhile.",
    "503": "Try again after Retry-After seconds.",
}


def document_of(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of ``app``: FastAPI's own of paths and parameters, with bodies and replies."""
    if app.openapi_schema is None:
        app.openapi_schema = _described(get_openapi(title=app.title, version=app.version, routes=app.routes))
    return app.openapi_schema


def _described(document: dict[str, Any]) -> dict[str, Any]:
    kinds = {kind for each in ENDPOINTS for kind in (_body(each), each.reply)} - _NOT_JSON
    schemas, shared = TypeAdapter.json_schemas(
        [(kind, "validation", adapter_of(kind)) for kind in (*sorted(kinds, key=str), Reason, Violation)],
        ref_template="#/components/schemas/{model}",
    )
    places = {kind: schema for (kind, _), schema in schemas.items()}
    definitions = {name: _closed(each) for name, each in encode(shared["$defs"]).items()}
    for kind in kinds:
        if "$ref" in places[kind]:  # a message of its own says which schema it has
            definitions[kind.__name__]["properties"][VERSION_KEY] = {"const": SCHEMA_VERSION}
    document["components"] = {"schemas": {**definitions, "Error": _ERROR}}
    for each in ENDPOINTS:
        operation = document["paths"][each.path.replace(":path", "")][each.method.lower()]
        operation["responses"] = dict(_responses(each.reply, places))
        body = _body(each)
        if body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": places[body]}}}
    return document


def _body(endpoint: Endpoint[..., Any]) -> Any:
    return None if endpoint.message is None else endpoint.message.annotation


def _responses(kind: Any, places: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    if kind is None:
        yield "204", {"description": "Done."}
    elif kind in _NOT_JSON:
        yield "200", {"description": "Text.", "content": {"*/*": {"schema": {"type": "string"}}}}
    else:
        yield "200", {"description": "Done.", "content": {"application/json": {"schema": places[kind]}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, words in _STATUSES.items():
        yield status, {"description": words, "content": error}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """An unknown key of a message is refused."""
    return {**schema, "additionalProperties": False} if "properties" in schema else schema
