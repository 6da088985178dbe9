"""Makes the app out of the route table, the access rules and the services."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import Depends, FastAPI

from frenzy import __version__
from frenzy.app.services import Services
from frenzy.web import errors
from frenzy.web.access import Dependency, Need
from frenzy.web.routes import ROUTES


def create_app(
    services: Callable[[], Services],
    access: Mapping[Need, Dependency],
    on_job_changed: Callable[[str], None] = lambda name: None,
) -> FastAPI:
    """The app that is mounted at ``/frenzy``.

    services: called on each request, so that nothing is opened before it is needed; it keeps
    its own result. access: one dependency for every Need. on_job_changed: told the name of a job
    whose stored spec is new, changed or gone. The app serves no route of its own making (no
    documentation pages): those would not ask who calls.
    """
    app = FastAPI(title="Frenzy", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.services = services
    app.state.on_job_changed = on_job_changed
    errors.install(app)
    for route in ROUTES:
        app.add_api_route(
            route.path,
            route.handler,
            methods=[route.method],
            dependencies=[Depends(access[route.need])],
            name=f"{route.method} {route.path}",
            response_model=None,
        )
    return app
