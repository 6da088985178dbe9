"""Brings the checkout's own pages into the site, and turns links to files that are not pages into their names."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_CHECKOUT: Final = Path(__file__).parents[2]
_DOCS: Final = _CHECKOUT / "docs"
# README.md would take the index's place.
_OF_THE_ROOT: Final = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s:]+)\)")
_IMAGE: Final = re.compile(r"(?P<text>!\[[^\]]*\])\((?P<target>[^)\s:]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the checkout's root."""
    for name, uri in _OF_THE_ROOT.items():
        files.append(File.generated(config, uri, abs_src_path=str(_CHECKOUT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them; a link to code becomes the code's path."""
    source = Path(page.file.abs_src_path or "")

    def link(found: re.Match[str]) -> str:
        text, (place, _, fragment) = found["text"], found["target"].partition("#")
        if not place:
            return found[0]
        uri = _uri_of((source.parent / place).resolve())
        if uri is None:
            path = (source.parent / place).resolve().relative_to(_CHECKOUT)
            return text if str(path) in text else f"{text} (`{path}`)"
        there = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{text if text.startswith('!') else f'[{text}]'}({there}{'#' if fragment else ''}{fragment})"

    return _IMAGE.sub(link, _LINK.sub(link, markdown))


def _uri_of(target: Path) -> str | None:
    """Where the site has a file of the checkout; None where it has it not."""
    if target.parent == _CHECKOUT and target.name in _OF_THE_ROOT:
        return _OF_THE_ROOT[target.name]
    return target.relative_to(_DOCS).as_posix() if target.is_relative_to(_DOCS) and target.is_file() else None
