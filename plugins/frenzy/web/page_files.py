"""The pages inside Airflow's own: documents and their scripts, from this package only.

A page holds no data; its script asks the API with the reader's session. The content policy lets
a page load nothing but this origin's files and run no inline script.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template
from typing import Final

from fastapi import HTTPException, Response

PAGES: Final = {"gpus": "GPUs", "new_job": "New job", "training": "Training"}
_SCRIPT, _SHEET = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
_ICON = "image/svg+xml"
# uPlot draws the charts: version 1.6.32, MIT (https://github.com/leeoniya/uPlot).
STATIC_TYPES: Final = {
    "charts.js": _SCRIPT,
    "frenzy.css": _SHEET,
    "gpus.js": _SCRIPT,
    "gpus.svg": _ICON,
    "logs.js": _SCRIPT,
    "model.js": _SCRIPT,
    "new_job.js": _SCRIPT,
    "new_job.svg": _ICON,
    "node_map.js": _SCRIPT,
    "page.js": _SCRIPT,
    "plans.js": _SCRIPT,
    "schedule.js": _SCRIPT,
    "starting.js": _SCRIPT,
    "theme.js": _SCRIPT,
    "timeline.js": _SCRIPT,
    "training.js": _SCRIPT,
    "training.svg": _ICON,
    "uPlot.LICENSE.txt": "text/plain; charset=utf-8",
    "uPlot.css": _SHEET,
    "uPlot.js": _SCRIPT,
    "usage.js": _SCRIPT,
    "verdict.js": _SCRIPT,
    "virtual_table.js": _SCRIPT,
    "what_if.js": _SCRIPT,
}
_LOADING: Final = '<p class="faint">Loading…</p><noscript>This page needs JavaScript.</noscript>'
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def get_page(name: str) -> Response:
    """The page of that name; 404 for any other."""
    if name not in PAGES:
        raise HTTPException(404, f"There is no page {name!r}; pages are {', '.join(PAGES)}.")
    script = f'<script type="module" src="../static/{name}.js"></script>'
    return document(
        PAGES[name], '<p class="faint">Loading…</p><noscript>This page needs JavaScript.</noscript>', script
    )


def document(title: str, main: str, script: str = "") -> Response:
    """A page with ``main`` in it; all three are markup."""
    page = Template(_content("page.html").decode()).substitute(title=title, main=main, script=script)
    return Response(page, media_type="text/html; charset=utf-8", headers=_HEADERS)


def get_static(name: str) -> Response:
    """A file of the pages; 404 for any other."""
    if name not in STATIC_TYPES:
        raise HTTPException(404, f"There is no file {name!r}.")
    return Response(_content(f"static/{name}"), media_type=STATIC_TYPES[name], headers=_HEADERS)


@cache
def _content(path: str) -> bytes:
    return files("frenzy.web").joinpath(path).read_bytes()
