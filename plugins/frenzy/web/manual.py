"""The documentation that comes with the product, so that a reason's link leads somewhere without a network, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from fastapi import HTTPException, Response
from markdown_it import MarkdownIt
from markdown_it.token import Token

from frenzy.settings import CHECKOUT
from frenzy.web.page_files import document

_FOLDER: Final = CHECKOUT / "docs"
_PAGE: Final = re.compile(r"(?P<name>[\w-]+)\.md(?P<fragment>#.*)?")
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table")


def get_manual(name: str) -> Response:
    """The page of ``docs`` of that name; 404 for any other."""
    known = _names()
    if name not in known:
        raise HTTPException(404, f"There is no page {name!r} in the manual; pages are {', '.join(sorted(known))}.")
    return document(*_page(name))


@cache
def _names() -> frozenset[str]:
    return frozenset(each.stem for each in _FOLDER.glob("*.md"))


@cache
def _page(name: str) -> tuple[str, str]:
    """Its title, and what it says as HTML."""
    tokens = _MARKDOWN.parse(Path(_FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    title = next((each.content for each in tokens if each.type == "inline"), name)
    for heading, text in zip(tokens, tokens[1:], strict=False):
        if heading.type == "heading_open":
            heading.attrSet("id", _slug(text.content))
    for each in tokens:
        each.children = list(_own(each.children)) if each.children else each.children
    way = '<p><a href="index">Manual</a> · <a href="runbook">Runbook</a></p>'
    return escape(
        title
    ), f'<article class="manual">{way}{_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})}</article>'


def _own(tokens: list[Token]) -> Iterator[Token]:
    """Links lead to the manual's pages; what it does not have, a file or a picture, is its words."""
    kept: list[bool] = []
    for each in tokens:
        if each.type == "image":
            yield Token("text", "", 0, content=each.content)
            continue
        if each.type == "link_open":
            href = _address(str(each.attrGet("href")))
            kept.append(href is not None)
            each.attrSet("href", href or "")
        if each.type not in ("link_open", "link_close") or (kept[-1] if each.type == "link_open" else kept.pop()):
            yield each


def _address(href: str) -> str | None:
    found = _PAGE.fullmatch(href)
    if found is not None:
        return f"{found['name']}{found['fragment'] or ''}" if found["name"] in _names() else None
    return href if href.startswith(("#", "https://")) else None


def _slug(heading: str) -> str:
    """As the sites that show these pages make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
