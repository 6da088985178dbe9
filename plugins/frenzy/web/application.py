"""Makes the app out of the table of endpoints, the access rules and the services."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Request, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from frenzy import __version__
from frenzy.api.declaration import Endpoint, Need
from frenzy.api.endpoints import ENDPOINTS
from frenzy.app.services import Services
from frenzy.web import error_replies
from frenzy.web.guards import Dependency, guard
from frenzy.web.handlers import HANDLERS, Asked
from frenzy.web.messages import Act, body_of, message_of, refuse_odd_names, reply
from frenzy.web.model_reader import ModelReader
from frenzy.web.new_job import Drafter
from frenzy.web.turnstile import Turnstile, lanes_of_frenzy

_NOWHERE: Final = ModelReader()
_OF_TASKS: Final = frozenset(each.name for each in ENDPOINTS if each.need is Need.SERVICE)


def create_app(
    services: Callable[[], Services],
    person: Dependency,
    on_job_changed: Callable[[str], None] = lambda name: None,
    on_act: Callable[[Act], None] = lambda act: None,
    models: ModelReader = _NOWHERE,
) -> FastAPI:
    """The app that is mounted at ``/frenzy``.

    services: called on each request, so that nothing is opened before it is needed; it keeps its own result.
    person: a dependency that yields who calls (``frenzy.web.guards.Person``). on_job_changed: called with the name
    of a job whose stored spec is new, changed or gone. on_act: called with who changed what. models: reads the
    config of a job that is not stored yet. The app serves no route of
    its own making (no documentation pages): those would not ask who calls.
    """
    app = FastAPI(
        title="Frenzy",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(refuse_odd_names)],
    )
    app.state.services = services
    app.state.on_job_changed = on_job_changed
    app.state.on_act = on_act
    app.state.drafter = Drafter(models)
    app.add_middleware(Turnstile, lanes=lanes_of_frenzy(lambda scope: _is_of_tasks(app, scope)))
    error_replies.install(app)
    for each in ENDPOINTS:
        app.add_api_route(
            each.path,
            _route_of(each),
            methods=[each.method],
            dependencies=[Depends(guard(each.need, person))],
            name=each.name,
            operation_id=each.name,
            description=each.sentence,
            response_model=None,
        )
    return app


def _is_of_tasks(app: FastAPI, scope: Scope) -> bool:
    """Whether only Frenzy's own tasks may ask for it."""
    routes = (each for each in app.routes if isinstance(each, Route) and each.name in _OF_TASKS)
    return any(each.matches(scope)[0] is Match.FULL for each in routes)


def _route_of(endpoint: Endpoint[..., Any]) -> Callable[..., Response]:
    """A function with the endpoint's parameters. FastAPI runs it in a thread: while it decodes and answers, no other
    caller waits.
    """
    handler, message = HANDLERS[endpoint], endpoint.message

    def answer(http: Request, **given: Any) -> Response:
        if message is not None:
            given[message.name] = message_of(message.annotation, given[message.name], endpoint.limits)
        found = handler(Asked(http), **given)
        return found if isinstance(found, Response) else reply(found)

    parameters = [
        each.replace(annotation=Annotated[bytes, Depends(body_of)]) if each is message else each
        for each in endpoint.signature.parameters.values()
    ]
    http = inspect.Parameter("http", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    answer.__signature__ = inspect.Signature([http, *parameters])  # type: ignore[attr-defined]
    return answer
