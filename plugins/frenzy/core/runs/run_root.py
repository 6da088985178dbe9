"""Places in a specification that would read the folders of many runs at once."""

from __future__ import annotations

import posixpath
import re
from fnmatch import fnmatchcase
from typing import Final

_SCHEME: Final = re.compile(r"^(?:.*::)?(?:\w+:)?")
_PATTERN: Final = re.compile(r"[*?\[]")


def reads_runs(place: str, root: str) -> bool:
    """Whether ``place``, a file, a folder or a pattern, may stand for more below ``root`` than one run that it names.

    A folder stands for all that is below it. What ``[`` begins counts as whatever fits, and a pattern with ``..`` as
    one that leads anywhere.
    """
    given, runs = _parts(place), _parts(root)
    if not _PATTERN.search(place):
        return given == runs[: len(given)]
    for part, name in zip(given, (*runs, None), strict=False):
        if "**" in part or ".." in given:
            return True
        if name is None:
            return _PATTERN.search(part) is not None or _PATTERN.search("/".join(given[: len(runs)])) is not None
        if "[" not in part and not fnmatchcase(name, part):
            return False
    return False


def _parts(place: str) -> tuple[str, ...]:
    """Without ``..``, where no pattern says what that leaves."""
    path = _SCHEME.sub("", place)
    if not _PATTERN.search(path):
        path = posixpath.normpath(f"/{path}")
    return tuple(each for each in path.split("/") if each not in ("", "."))
