"""Makes the app out of the route table, the access rules and the services."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Depends, FastAPI

from frenzy import __version__
from frenzy.app.services import Services
from frenzy.web import errors
from frenzy.web.access import Dependency, guard
from frenzy.web.messages import Act, refuse_odd_names
from frenzy.web.routes import ROUTES
from frenzy.web.turnstile import Turnstile, one_lane


def create_app(
    services: Callable[[], Services],
    person: Dependency,
    on_job_changed: Callable[[str], None] = lambda name: None,
    on_act: Callable[[Act], None] = lambda act: None,
) -> FastAPI:
    """The app that is mounted at ``/frenzy``.

    services: called on each request, so that nothing is opened before it is needed; it keeps its own result.
    person: a dependency that yields who calls (``frenzy.web.access.Person``). on_job_changed: told the name of a
    job whose stored spec is new, changed or gone. on_act: told who changed what. The app serves no route of its own
    making (no documentation pages): those would not ask who calls.
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
    app.add_middleware(Turnstile, lanes=one_lane())
    errors.install(app)
    for route in ROUTES:
        app.add_api_route(
            route.path,
            route.handler,
            methods=[route.method],
            dependencies=[Depends(guard(route.need, person))],
            name=f"{route.method} {route.path}",
            response_model=None,
        )
    return app
