"""Where the app hangs in Airflow: which process serves it, and which tabs and pages show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from frenzy.api import URL_PREFIX

_SERVER_COMMANDS: Final = frozenset({"api-server", "standalone"})
_SERVER_PROGRAMS: Final = ("gunicorn", "uvicorn", "fastapi")


def serves_api(argv: Sequence[str]) -> bool:
    """Whether a process started with ``argv`` is an API server, or one of its workers."""
    program = argv[0].rsplit("/", 1)[-1] if argv else ""
    return bool(_SERVER_COMMANDS & set(argv[1:])) or program.startswith(_SERVER_PROGRAMS)


def external_views(base_url: str) -> list[dict[str, Any]]:
    """The tabs of a DAG run and the pages of the navigation, in Airflow's form.

    base_url: ``[api] base_url``; its path is the root they are below. Airflow puts the run's ids,
    percent-encoded, in place of the braces.
    """
    root = urlsplit(base_url).path.rstrip("/") + URL_PREFIX
    run = "?dag_id={DAG_ID}&run_id={RUN_ID}"
    return [
        _view(root, "Training", f"training{run}", destination="dag_run"),
        _view(root, "GPUs", "gpus", destination="nav"),
        _view(root, "New job", "new_job", destination="nav"),
    ]


def _view(root: str, name: str, page: str, *, destination: str) -> dict[str, Any]:
    page_name = page.partition("?")[0]
    return {
        "name": name,
        "href": f"{root}/pages/{page}",
        "destination": destination,
        "url_route": f"frenzy_{page_name}",
        # Airflow shows it in one colour, on its light, dark and active grounds: a rim keeps it apart from all of them.
        "icon": f"{root}/static/{page_name}.svg",
        # In the navigation itself: two or more that do not say so are put into a menu.
        "nav_top_level": destination == "nav",
    }
