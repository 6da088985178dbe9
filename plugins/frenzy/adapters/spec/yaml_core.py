"""YAML as its 1.2 core schema reads it: what a person writes is what arrives.

PyYAML follows YAML 1.1, where ``on`` is true, ``3e-4`` is text, ``1:30`` is ninety and a date is
an object. Here only true/false are booleans, every usual number is a number, and the rest is
text. A key that is given twice is refused.

Every text that a person wrote is read here, and none costs more than its limits allow: the events of
a YAML text are counted before anything is made of them, since libyaml's composer recurses into the
C stack and an alias may stand for very many values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, Event, ScalarEvent
from yaml.nodes import MappingNode, Node, ScalarNode

from frenzy.core.values.codec import TextLimits
from frenzy.core.values.errors import SpecError, Violation

SPEC: Final = TextLimits(256 * 1024, 10_000)
"""Of a specification, which anybody may send."""
FILE: Final = TextLimits(4 * 1024**2, 200_000)
"""Of a file that the administrator wrote, and of what programs send each other."""
_MAX_DEPTH: Final = 50
_MAX_KEY: Final = 512
_MAX_WHOLE: Final = 2**63
_MOST_DIGITS: Final = 64
# JSON could write them, but no text, file name or database can hold them.
_NO_CHARACTER: Final = re.compile("[\x00\ud800-\udfff]")

# Line breaks of other systems would be folded in any style without escapes.
_NEEDS_ESCAPES: Final = re.compile("[^\n -~\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_TAG: Final = "tag:yaml.org,2002:"
_RESOLVERS: Final = (
    ("null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", tuple("tTfF")),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", tuple("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        tuple("-+0123456789."),
    ),
    ("merge", r"^<<$", ("<",)),
)
# What a value is follows from how it is written; of the tags that say so, those that change nothing else are read.
_READ_TAGS: Final = frozenset({None, "!", _TAG + "str", _TAG + "seq", _TAG + "map"})


def _implicit_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for kind, pattern, first_letters in _RESOLVERS:
        for letter in first_letters:
            table.setdefault(letter, []).append((_TAG + kind, re.compile(pattern)))
    return table


_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_FastLoader):  # type: ignore[misc]  # chosen at run time
    yaml_implicit_resolvers = _implicit_resolvers()

    def construct_mapping(self, node: Node, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, MappingNode):
            _refuse_repeated_keys(node)
        result: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return result

    def construct_whole_number(self, node: ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        if len(text) > _MOST_DIGITS:
            problem = f"a whole number has at most {_MOST_DIGITS} digits"
            raise ConstructorError(None, None, problem, node.start_mark)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_Loader.add_constructor(_TAG + "int", _Loader.construct_whole_number)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _implicit_resolvers()

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    if _NEEDS_ESCAPES.search(text):
        return dumper.represent_scalar(_TAG + "str", text, style='"')
    return dumper.represent_scalar(_TAG + "str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _refuse_repeated_keys(node: MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            raise ConstructorError(None, None, "a key must be plain text", key.start_mark)
        if key.value in seen:
            raise ConstructorError(None, None, f"the key {_cut(key.value)} is given twice", key.start_mark)
        seen.add(key.value)


def load_yaml(text: str, limits: TextLimits = SPEC) -> Any:
    """The one document in ``text`` as plain values with text keys.

    Raises SpecError naming the line for text that is no YAML, the path for a value that a JSON
    document could not hold, and what is too much of a text beyond ``limits``.
    """
    if len(text.encode(errors="replace")) > limits.max_bytes:
        raise _refusal("the document", f"{len(text)} characters", f"at most {limits.max_bytes} bytes are read")
    try:
        document = _parsed(text, limits)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the document"
        raise _refusal(place, _line_at(text, mark), f"not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _refusal("the document", "text", f"not valid YAML: {str(error).splitlines()[0]}") from error
    check_plain(document, limits)
    return document


def load_json(text: str | bytes, limits: TextLimits = FILE) -> Any:
    """The JSON document in ``text``, under the same limits. Raises SpecError.

    NaN and the infinities, which are no JSON but what Python's own writer sends for them, are read
    as null: a loss may be one.
    """
    if len(text) > limits.max_bytes:
        raise _refusal("the document", f"{len(text)} bytes", f"at most {limits.max_bytes} bytes are read")
    try:
        document = json.loads(text, parse_constant=lambda _: None)
    except RecursionError as error:
        raise _too_large(limits) from error
    except ValueError as error:
        raise _refusal("the document", "text", f"not valid JSON: {error}") from error
    check_plain(document, limits)
    return document


def _parsed(text: str, limits: TextLimits) -> Any:
    """JSON is read as JSON: its escapes of characters beyond 16 bits are not YAML's."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError):
            pass  # not JSON; what is wrong with it is said by its line
    _Count(limits).check(text)
    return yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe loader


@dataclass(slots=True)
class _Count:
    """Counts what a YAML text would become, without making any of it."""

    limits: TextLimits
    values: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    """Values below each anchor; none as long as it is not closed."""
    open: list[tuple[str | None, int]] = field(default_factory=list)

    def check(self, text: str) -> None:
        """Raise SpecError, or what the parser raises."""
        for event in yaml.parse(text, Loader=_FastLoader):
            self._see(event)
            if len(self.open) > _MAX_DEPTH or self.values > self.limits.max_values:
                raise _too_large(self.limits)

    def _see(self, event: Event) -> None:
        tag = getattr(event, "tag", None)
        if tag not in _READ_TAGS:
            raise _at_event(event, f"the tag {tag!r} is not read")
        if isinstance(event, CollectionStartEvent):
            self.open.append((event.anchor, self.values))
            self.values += 1
        elif isinstance(event, CollectionEndEvent):
            anchor, before = self.open.pop()
            self._name(anchor, self.values - before)
        elif isinstance(event, ScalarEvent):
            self.values += 1
            self._name(event.anchor, 1)
        elif isinstance(event, AliasEvent):
            if event.anchor not in self.sizes:
                raise _at_event(event, f"the alias {event.anchor!r} stands for nothing before it")
            self.values += self.sizes[event.anchor]

    def _name(self, anchor: str | None, size: int) -> None:
        if anchor is not None:
            self.sizes[anchor] = size


def _at_event(event: Any, problem: str) -> ConstructorError:
    return ConstructorError(None, None, problem, event.start_mark)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def dump_yaml(document: Any) -> str:
    """``document`` (plain values) as YAML that ``load_yaml`` reads back to the same."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def check_plain(document: Any, limits: TextLimits = SPEC) -> None:
    """Raise SpecError unless ``document`` consists of what JSON can hold, and not of too much."""
    _PlainCheck(limits).visit(document, "", 0)


class _PlainCheck:
    """Counts values while it walks: an alias may stand for very many."""

    def __init__(self, limits: TextLimits) -> None:
        self._limits = limits
        self._num_values = 0

    def visit(self, value: Any, path: str, depth: int) -> None:
        self._num_values += 1
        if self._num_values > self._limits.max_values or depth > _MAX_DEPTH:
            raise _too_large(self._limits)
        if isinstance(value, Mapping):
            for key, item in value.items():
                _check_key(key, path)
                self.visit(item, f"{path}.{key}" if path else key, depth + 1)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self.visit(item, f"{path}[{index}]", depth + 1)
        else:
            _check_scalar(value, path)


def _check_key(key: Any, path: str) -> None:
    if not isinstance(key, str):
        raise _refusal(path, f"the key {_cut(key)}", "keys are text: write it in quotes")
    if len(key) > _MAX_KEY or _NO_CHARACTER.search(key):
        raise _refusal(path, f"the key {_cut(key)}", f"at most {_MAX_KEY} characters, none of them NUL or half of one")


def _check_scalar(value: Any, path: str) -> None:
    if isinstance(value, str):
        if _NO_CHARACTER.search(value):
            raise _refusal(path, _cut(value), "text without NUL and halves of characters (lone surrogates)")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refusal(path, repr(value), "a finite number")
    elif isinstance(value, int):
        if abs(value) >= _MAX_WHOLE:
            raise _refusal(path, _cut(value), "whole numbers are below 2^63")
    elif value is not None:
        raise _refusal(path, f"a {type(value).__name__}", "text, a number, true or false, a list or a mapping")


def _too_large(limits: TextLimits) -> SpecError:
    allowed = f"at most {limits.max_values} values, nested at most {_MAX_DEPTH} deep, aliases counted as what they are"
    return _refusal("the document", "too large", allowed)


def _cut(value: object) -> str:
    if isinstance(value, int) and abs(value) >= _MAX_WHOLE:
        return "a whole number of very many digits"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _line_at(text: str, mark: Any) -> str:
    lines = text.splitlines()
    return _cut(lines[mark.line].strip()) if mark and mark.line < len(lines) else "the end of the text"


def _refusal(path: str, value: str, allowed: str) -> SpecError:
    return SpecError([Violation(path=path or "the document", value=value, allowed=allowed)])
