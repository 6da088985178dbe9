"""The API described for other programs: OpenAPI 3.1, made of the route table and of the messages' own types."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from frenzy.core.runs import protocol, views
from frenzy.core.values.codec import SCHEMA_VERSION, VERSION_KEY, encode
from frenzy.core.values.errors import Reason, Violation
from frenzy.web import cluster_routes as cluster
from frenzy.web import run_routes as run
from frenzy.web.messages import adapter_of

# What each handler of the API answers with; ``str``: text that is no JSON.
REPLIES: Final[Mapping[Callable[..., Response], Any]] = {
    run.post_run: protocol.RunView,
    run.get_runs: tuple[protocol.RunView, ...],
    run.get_runs_of_dag_run: tuple[protocol.RunView, ...],
    run.get_run: protocol.RunView,
    run.post_enqueue: protocol.PlaceView,
    run.get_place: protocol.PlaceView,
    run.post_launching: protocol.Directive,
    run.post_started: protocol.Directive,
    run.post_progress: protocol.Directive,
    run.post_pressure: protocol.Directive,
    run.post_end: protocol.RunView,
    run.post_decide: protocol.Verdict,
    run.post_cancel: protocol.RunView,
    run.get_ended: tuple[protocol.EndedRun, ...],
    run.post_clean: protocol.CleanedRun,
    run.get_memory: views.MemoryView,
    run.get_explain: views.Explanation,
    run.get_logs: str,
    cluster.post_job: protocol.SubmittedJob,
    cluster.get_jobs: tuple[str, ...],
    cluster.get_job: str,
    cluster.delete_job: None,
    cluster.post_plan: protocol.PlanPreview,
    cluster.get_queue: views.QueueView,
    cluster.get_queue_snapshot: views.QueueSnapshot,
    cluster.get_gpus: views.GpusView,
    cluster.get_reasons: dict[str, str],
    cluster.get_sweep: tuple[protocol.SweepTarget, ...],
    cluster.post_sweep: protocol.SweepSummary,
}
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


def get_openapi(request: Request) -> Response:
    """This API's OpenAPI document."""
    app: FastAPI = request.app
    if app.openapi_schema is None:
        app.openapi_schema = document_of(app)
    return JSONResponse(app.openapi_schema)


def document_of(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of ``app``: FastAPI's own of paths and parameters, with bodies and replies."""
    app.openapi_schema = None
    document = app.openapi()
    routes = [each for each in app.routes if isinstance(each, APIRoute) and each.endpoint in REPLIES]
    kinds = {kind for each in routes for kind in (_body(each), REPLIES[each.endpoint]) if kind not in (None, str)}
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
    for each in routes:
        operation = document["paths"][each.path_format][next(iter(each.methods)).lower()]
        operation["responses"] = dict(_responses(REPLIES[each.endpoint], places))
        body = _body(each)
        if body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": places[body]}}}
    return document


def _body(route: APIRoute) -> type | None:
    """The message that a handler takes: the parameter that is one of the protocol's."""
    hints = typing.get_type_hints(route.endpoint).items()
    return next((kind for name, kind in hints if getattr(kind, "__module__", "") == protocol.__name__), None)


def _responses(kind: Any, places: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    if kind is None:
        yield "204", {"description": "Done."}
    elif kind is str:
        yield "200", {"description": "Text.", "content": {"*/*": {"schema": {"type": "string"}}}}
    else:
        yield "200", {"description": "Done.", "content": {"application/json": {"schema": places[kind]}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, words in _STATUSES.items():
        yield status, {"description": words, "content": error}


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """An unknown key of a message is refused."""
    return {**schema, "additionalProperties": False} if "properties" in schema else schema
