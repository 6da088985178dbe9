"""Texts of a job that only its workers are to read.

A DAG's author may fill a text from a connection or a variable. The paths of such texts are kept beside the job, and
whatever shows the job, or repeats such a text in a sentence, shows ``HIDDEN`` in its place.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, Protocol, TypeVar

from frenzy.core.runs.access import HIDDEN
from frenzy.core.runs.ledger import Event
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values.errors import Reason
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import AttemptResult

# Of these sections of a job, whoever may see its DAG is shown the names, not the values.
NAMES_ONLY: Final = ("env", "secrets")
# By these, jobs are listed and queued: they cannot be hidden.
ALWAYS_SHOWN: Final = frozenset({"name", "queue", "team", "constraints"})
# A shorter text stands in too many sentences by chance.
_LEAST_CHARACTERS: Final = 5
_SENTENCES: Final = (AttemptResult, Event, Reason, TrackedRun)

T = TypeVar("T")


class HasMaskedJob(Protocol):
    """A run or a launch spec: a job, and the paths of its texts that are masked, as a Violation writes paths."""

    @property
    def job(self) -> TrainingJob: ...

    @property
    def masked(self) -> tuple[str, ...]: ...


def masked_at(value: T, paths: Collection[str]) -> T:
    """``value``, a job or its document, with HIDDEN for each text at or below one of ``paths``.

    What is ``ALWAYS_SHOWN`` stays, and so do the numbers and choices of a job, which hold no text of anybody's.
    """
    masked: T = _masked_at(value, "", paths, False)
    return masked


def texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and text of every free text in ``value``, a job or its document, in its order."""
    if type(value) is str:
        yield path, value
    for place, item in _items(value, path):
        yield from texts(item, place)


def hidden_texts(value: Any, paths: Collection[str]) -> set[str]:
    """The texts that ``masked_at`` hides."""
    pairs = zip(texts(value), texts(masked_at(value, paths)), strict=True)
    return {before for (_, before), (_, after) in pairs if before and before != after}


def hidden_bytes(source: HasMaskedJob) -> tuple[bytes, ...]:
    """What ``without_masked`` hides, as it stands in a log, the longest first; of a long text each line, too."""
    found = hidden_texts(source.job, source.masked) if source.masked else set()
    parts = {part for text in found for part in (text, *text.splitlines()) if len(part) >= _LEAST_CHARACTERS}
    return tuple(sorted((part.encode(errors="replace") for part in parts), key=len, reverse=True))


def without_masked(value: T, source: HasMaskedJob) -> T:
    """``value``, which tells of ``source``, with its job masked and without the masked texts in its sentences."""
    if not source.masked:
        return value
    job, hidden = masked_at(source.job, source.masked), hidden_texts(source.job, source.masked)
    cleaned: T = _without(value, job, sorted(hidden, key=len, reverse=True), True)
    return cleaned


def _masked_at(value: Any, path: str, paths: Collection[str], is_below: bool) -> Any:
    if path in ALWAYS_SHOWN:
        return value
    is_masked = is_below or path in paths
    if type(value) is str and is_masked:
        return HIDDEN
    return _rebuilt(value, [_masked_at(item, place, paths, is_masked) for place, item in _items(value, path)])


def _without(value: Any, job: TrainingJob, hidden: list[str], is_sentence: bool) -> Any:
    if isinstance(value, TrainingJob):
        return job
    if type(value) is str and is_sentence:
        for each in hidden:
            if len(each) >= _LEAST_CHARACTERS or value == each:
                value = value.replace(each, HIDDEN)
        return value
    below = isinstance(value, _SENTENCES) if dataclasses.is_dataclass(value) else is_sentence
    below = below or isinstance(value, Mapping)
    return _rebuilt(value, [_without(item, job, hidden, below) for _, item in _items(value, "")])


def _items(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What ``value`` consists of, each with its path; nothing for a text, a number or a choice."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for name in _open_fields(type(value)):
            yield f"{path}.{name}".removeprefix("."), getattr(value, name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{path}.{key}".removeprefix("."), item
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item


def _rebuilt(value: Any, items: list[Any]) -> Any:
    """``value`` made of ``items`` instead of its own."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **dict(zip(_open_fields(type(value)), items, strict=True)))
    if isinstance(value, Mapping):
        return dict(zip(value, items, strict=True))
    return type(value)(items) if isinstance(value, list | tuple) else value


@cache
def _open_fields(kind: type) -> tuple[str, ...]:
    """Fields that are not one of a few given words."""
    hints = typing.get_type_hints(kind)
    return tuple(each.name for each in dataclasses.fields(kind) if typing.get_origin(hints[each.name]) is not Literal)
