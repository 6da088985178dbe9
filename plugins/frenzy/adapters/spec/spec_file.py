"""A job's YAML file: read, checked, and its local paths made absolute before it goes anywhere.

The file is written where its author stands; the workers stand elsewhere. A relative path is looked
for from the working folder, from the file's own folder, and from the checkout, in this order; the
text around it stays as it was written. One that is found nowhere is left alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from frenzy.adapters.spec.job_paths import PATH_FIELDS, anchored
from frenzy.adapters.spec.job_spec import job_from_yaml, job_to_yaml
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import TrainingJob
from frenzy.settings import CHECKOUT

_Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """The text that is submitted, and the job it describes: read once."""

    text: str
    job: TrainingJob


def checked_spec(path: Path) -> SpecFile:
    """The specification at ``path`` (``-``: standard input). Raises SpecError with every violation."""
    return checked_text(read_text(path), path)


def checked_text(text: str, path: Path) -> SpecFile:
    """The same of ``text``, which was read at ``path``."""
    given = job_from_yaml(text)
    job = anchored(given, (Path.cwd(), path.absolute().parent, CHECKOUT), may_leave=True)
    return SpecFile(text=text if job is given else with_paths_of(job, given, text), job=job)


def read_text(path: Path) -> str:
    """The text at ``path``; raises SpecError naming the path when it cannot be read."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(path, "a text file in UTF-8") from error
    except OSError as error:
        raise _unreadable(path, f"a YAML file on this machine, or - for standard input ({error.strerror})") from error


def with_paths_of(job: TrainingJob, given: TrainingJob, text: str) -> str:
    """``text``, which is YAML of ``given``, with the paths of ``job``; where they cannot be put in place, made anew."""
    changed = {}
    for section, name in PATH_FIELDS:
        path = getattr(getattr(job, section), name, None)
        if path != getattr(getattr(given, section), name, None):
            changed[section, name] = path
    nodes = _scalars(text, changed)
    if len(nodes) < len(changed):
        return job_to_yaml(job)
    for place in sorted(nodes, key=lambda each: nodes[each].start_mark.index, reverse=True):
        node = nodes[place]
        text = text[: node.start_mark.index] + json.dumps(changed[place]) + text[node.end_mark.index :]
    return text if _says(text, job) else job_to_yaml(job)


def _says(text: str, job: TrainingJob) -> bool:
    """Whether ``text`` is of ``job``: what an anchor named is lost with it."""
    try:
        return job_from_yaml(text) == job
    except SpecError:
        return False


def _scalars(text: str, places: Iterable[_Place]) -> dict[_Place, yaml.ScalarNode]:
    """The values written in one line at ``places``."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # JSON that is no YAML
        return {}
    nodes = {(section, name): _child(_child(root, section), name) for section, name in places}
    return {
        place: node
        for place, node in nodes.items()
        if isinstance(node, yaml.ScalarNode) and node.style not in ("|", ">")
    }


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if key.value == name), None)


def _unreadable(path: Path, allowed: str) -> SpecError:
    return SpecError([Violation(path="SPEC", value=repr(str(path)), allowed=allowed)])
