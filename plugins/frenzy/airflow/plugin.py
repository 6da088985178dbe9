"""What Airflow loads: the API and pages, and where the pages hang in its UI.

The app is made in the API server's process only: other components load plugins too, and
FastAPI would cost each of them start-up time and memory.
"""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

URL_PREFIX = "/frenzy"
_SERVER_COMMANDS = frozenset({"api-server", "standalone"})


def serves_api(argv: list[str]) -> bool:
    """Whether a process started with ``argv`` is an API server (or one of its workers)."""
    program = argv[0] if argv else ""
    return bool(_SERVER_COMMANDS & set(argv[1:])) or any(name in program for name in ("gunicorn", "uvicorn", "fastapi"))


def api_app() -> dict[str, Any]:
    """The FastAPI app in the form Airflow mounts; imports what only the server needs."""
    from frenzy.web.access import airflow_access
    from frenzy.web.application import create_app
    from frenzy.wiring import services

    return {"app": create_app(services, airflow_access()), "url_prefix": URL_PREFIX, "name": "Frenzy"}


def external_views(base_url: str) -> list[dict[str, Any]]:
    """The tabs and the nav entry; ``base_url`` is ``[api] base_url``, whose path they are below."""
    root = urlsplit(base_url).path.rstrip("/")
    pages = f"{root}{URL_PREFIX}/pages"
    run = "?dag_id={DAG_ID}&run_id={RUN_ID}"
    icon = f"{root}{URL_PREFIX}/static/icon.svg"
    return [
        {
            "name": "Memory",
            "href": f"{pages}/memory{run}",
            "destination": "dag_run",
            "url_route": "frenzy_memory",
            "icon": icon,
        },
        {
            "name": "Plan",
            "href": f"{pages}/plan{run}",
            "destination": "dag_run",
            "url_route": "frenzy_plan",
            "icon": icon,
        },
        {
            "name": "Queue",
            "href": f"{pages}/queue",
            "destination": "nav",
            "category": "browse",
            "url_route": "frenzy_queue",
            "icon": icon,
        },
    ]


class FrenzyPlugin(AirflowPlugin):
    name = "frenzy"
    fastapi_apps = [api_app()] if serves_api(sys.argv) else []
    external_views = external_views(conf.get("api", "base_url", fallback=""))
