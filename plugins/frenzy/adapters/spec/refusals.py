"""What pydantic refuses in a file, as violations: the path, the value, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from frenzy.core.values.errors import SpecError, Violation

Location = tuple[int | str, ...]
_UNKNOWN_FIELD: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_SHOWN_CHARACTERS: Final = 80
# By the type of error; in braces what pydantic tells of it.
_WORDS: Final[Mapping[str, str]] = {
    "string_pattern_mismatch": "must match {pattern}",
    "missing": "this field is required",
    "extra_forbidden": "no such field",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "too_short": "at least {min_length} of them",
    "string_type": "a text",
    "bool_type": "true or false",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping of fields"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
}


def violations_of(
    error: ValidationError,
    fields_at: Callable[[Location], Iterable[str]],
    whole: str,
    patterns: Mapping[str, str] = MappingProxyType({}),
) -> list[Violation]:
    """Every violation in ``error``.

    fields_at: names of the fields that may stand where an unknown one was found. whole: what the
    document is called. patterns: what they say in words.
    """
    return [
        Violation(path=field_path(each["loc"], whole), value=_value(each), allowed=_allowed(each, fields_at, patterns))
        for each in real_errors(error)
    ]


def real_errors(error: ValidationError) -> list[ErrorDetails]:
    """The errors in ``error``, but for a list that is called too short only because of its refused entries."""
    return [each for each in error.errors(include_url=False) if each["type"] != "too_short" or not each["input"]]


def one_of(value: str, allowed: Iterable[str]) -> str:
    """What is known, and which of it ``value`` may have meant."""
    names = list(allowed)
    near = [name for name in names if name.startswith(value.lower())]
    near = near or sorted((name for name in names if name and value.lower().startswith(name)), key=len)[-1:]
    near = near or difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known are {', '.join(names)}"


def field_path(location: Location, whole: str) -> str:
    """``("nodes", 2, "gpus")`` as ``nodes[2].gpus``; ``whole`` for the document itself."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]"]
    return "".join(parts).lstrip(".") or whole


def in_words(problem: ErrorDetails) -> str:
    """What is allowed where ``problem`` was found, in the words of a file, not of Python."""
    kind = problem["type"]
    if kind in _WORDS:
        limits = problem.get("ctx", {})
        whole = {name: int(each) for name, each in limits.items() if isinstance(each, float) and each.is_integer()}
        return _WORDS[kind].format(**{**limits, **whole})
    message = str(problem["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def shown(value: object) -> str:
    """``value`` as it is quoted in an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def file_text(path: str | Path, whole: str) -> str:
    """The text of the file at ``path``; whole: what it is called. Raises SpecError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        detail = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise refused(whole, str(path), f"name a readable YAML file ({detail})") from error


def refused(path: str, value: str, allowed: str) -> SpecError:
    """An error of one violation."""
    return SpecError([Violation(path=path, value=value, allowed=allowed)])


def _value(problem: ErrorDetails) -> str:
    return "nothing" if problem["type"] == "missing" else shown(problem["input"])


def _allowed(problem: ErrorDetails, fields_at: Callable[[Location], Iterable[str]], patterns: Mapping[str, str]) -> str:
    if problem["type"] in _UNKNOWN_FIELD:
        return f"no such field; {one_of(str(problem['loc'][-1]), fields_at(problem['loc']))}"
    return patterns.get(problem.get("ctx", {}).get("pattern", "")) or in_words(problem)
