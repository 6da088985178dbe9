"""The pages inside Airflow's own: documents and their scripts, from this package only.

A page holds no data; its script asks the API with the reader's session. The content policy lets
a page load nothing but this origin's files and run no inline script.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template
from typing import Final

from fastapi import HTTPException, Response

PAGES: Final = {"gpus": "GPUs", "new_job": "New job", "training": "Training"}
_FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# uPlot draws the charts: version 1.6.32, MIT (https://github.com/leeoniya/uPlot).
STATIC_TYPES: Final = {each.name: _TYPES[each.suffix] for each in sorted(_FOLDER.iterdir()) if each.suffix in _TYPES}
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
    return document(PAGES[name], _LOADING, script)


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
    return (_FOLDER.parent / path).read_bytes()
