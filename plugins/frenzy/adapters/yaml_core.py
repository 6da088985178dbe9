"""YAML as its 1.2 core schema reads it: what a person writes is what arrives.

PyYAML follows YAML 1.1, where ``on`` is true, ``3e-4`` is text, ``1:30`` is ninety and a date is
an object. Here only true/false are booleans, every usual number is a number, and the rest is
text. A key that is given twice is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from frenzy.core.errors import SpecError, Violation

MAX_TEXT_BYTES: Final = 1024**2
_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 50

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
            raise ConstructorError(None, None, f"the key {key.value!r} is given twice", key.start_mark)
        seen.add(key.value)


def load_yaml(text: str) -> Any:
    """The one document in ``text`` as plain values with text keys.

    Raises SpecError naming the line for text that is no YAML, and the path for a value that a
    JSON document could not hold.
    """
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise _refusal("the document", f"{len(text)} characters", f"at most {MAX_TEXT_BYTES} bytes are read")
    try:
        document = _parsed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the document"
        raise _refusal(place, _line_at(text, mark), f"not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _refusal("the document", "text", f"not valid YAML: {str(error).splitlines()[0]}") from error
    check_plain(document)
    return document


def _parsed(text: str) -> Any:
    """JSON is read as JSON: its escapes of characters beyond 16 bits are not YAML's."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_without_repeats)
        except ValueError:
            pass  # not JSON; what is wrong with it is said by its line
    return yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe loader


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def dump_yaml(document: Any) -> str:
    """``document`` (plain values) as YAML that ``load_yaml`` reads back to the same."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def check_plain(document: Any) -> None:
    """Raise SpecError unless ``document`` consists of what JSON can hold, and not of too much."""
    _PlainCheck().visit(document, "", 0)


class _PlainCheck:
    """Counts values while it walks: an alias may stand for very many."""

    def __init__(self) -> None:
        self._num_values = 0

    def visit(self, value: Any, path: str, depth: int) -> None:
        self._num_values += 1
        if self._num_values > _MAX_VALUES or depth > _MAX_DEPTH:
            allowed = f"at most {_MAX_VALUES} values, nested at most {_MAX_DEPTH} deep"
            raise _refusal("the document", "too large", allowed)
        if isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise _refusal(path or "the document", f"the key {key!r}", "keys are text: write it in quotes")
                self.visit(item, f"{path}.{key}" if path else key, depth + 1)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self.visit(item, f"{path}[{index}]", depth + 1)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _refusal(path, repr(value), "a finite number")
        elif not isinstance(value, str | int | float | None):
            raise _refusal(path, f"a {type(value).__name__}", "text, a number, true or false, a list or a mapping")


def _line_at(text: str, mark: Any) -> str:
    lines = text.splitlines()
    return repr(lines[mark.line].strip()) if mark and mark.line < len(lines) else "the end of the text"


def _refusal(path: str, value: str, allowed: str) -> SpecError:
    return SpecError([Violation(path=path or "the document", value=value, allowed=allowed)])
