"""A job's YAML file: read, checked, and its local paths made absolute before it goes anywhere.

The file is written where its author stands; the workers stand elsewhere. A relative path is looked
for from the working folder, from the file's own folder, and from the checkout, in this order; the
text around it stays as it was written. One that is found nowhere is left alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import TrainingJob
from frenzy.settings import CHECKOUT

_PATH_FIELDS: Final = (("data", "path"), ("model", "path"), ("model", "tokenizer"), ("checkpoint", "warm_start"))
_TOKENIZER_KINDS: Final = frozenset({"byte", "train", "model"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """The text that is handed in, and the job it describes."""

    text: str
    job: TrainingJob


def checked_spec(path: Path) -> SpecFile:
    """The specification at ``path`` (``-``: standard input). Raises SpecError with every violation."""
    text = read_text(path)
    job_from_yaml(text)
    text = with_absolute_paths(text, (Path.cwd(), path.absolute().parent, CHECKOUT))
    return SpecFile(text=text, job=job_from_yaml(text))


def read_text(path: Path) -> str:
    """The text at ``path``; raises SpecError naming the path when it cannot be read."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(path, "a text file in UTF-8") from error
    except OSError as error:
        raise _unreadable(path, f"the path of a YAML file that can be read ({error.strerror})") from error


def with_absolute_paths(text: str, folders: tuple[Path, ...]) -> str:
    """``text`` with each relative path of the specification that exists below one of ``folders`` spelt out."""
    for node in sorted(_path_nodes(text), key=lambda each: each.start_mark.index, reverse=True):
        found = _found(node.value, folders)
        if found is not None:
            text = text[: node.start_mark.index] + json.dumps(found) + text[node.end_mark.index :]
    return text


def _path_nodes(text: str) -> Iterator[yaml.ScalarNode]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for section, name in _PATH_FIELDS:
        node = _child(_child(root, section), name)
        if not isinstance(node, yaml.ScalarNode) or node.style in ("|", ">"):
            continue
        if name != "tokenizer" or node.value not in _TOKENIZER_KINDS:
            yield node


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _found(given: str, folders: tuple[Path, ...]) -> str | None:
    if not given or "://" in given or Path(given).is_absolute():
        return None
    return next((str(folder / given) for folder in folders if _exists(folder, given)), None)


def _exists(folder: Path, given: str) -> bool:
    if any(letter in given for letter in "*?["):
        return any(True for _ in folder.glob(given))
    return (folder / given).exists()


def _unreadable(path: Path, allowed: str) -> SpecError:
    return SpecError([Violation(path="SPEC", value=repr(str(path)), allowed=allowed)])
