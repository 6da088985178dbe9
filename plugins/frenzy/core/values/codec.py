"""Frozen dataclasses to JSON and back, with a schema version.

Encoding is total; decoding is strict: an unknown key, a missing key without default or a
wrong type is a ContractError naming the path. Unions are supported as ``T | None`` only.
JSON knows neither NaN nor an infinity: a number that is none is written as null, and read as None
where None is allowed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

from frenzy.core.values.errors import ContractError

SCHEMA_VERSION: Final = 1
VERSION_KEY: Final = "schema_version"

T = TypeVar("T")
Json = Any


@dataclasses.dataclass(frozen=True, slots=True)
class TextLimits:
    """How much of a text is read; an alias counts as often as it stands for a value."""

    max_bytes: int
    max_values: int


def encode(value: object) -> Json:
    """``value`` as plain JSON types (dict, list, str, int, float, bool, None)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        items = sorted(value) if isinstance(value, frozenset | set) else value
        return [encode(item) for item in items]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumps(value: object, *, indent: int | None = None) -> str:
    """JSON text of a top-level value, with its schema version."""
    document = encode(value)
    if isinstance(document, dict):
        document = {VERSION_KEY: SCHEMA_VERSION, **document}
    return json.dumps(document, indent=indent, sort_keys=False, allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """The value of type ``kind`` in JSON ``text``.

    Raises ContractError when the text is not JSON, of a newer schema, or not of that form.
    """
    try:
        document = json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise ContractError(f"{kind.__name__}: nested too deep") from error
    except ValueError as error:
        raise ContractError(f"{kind.__name__}: not JSON ({error})") from error
    return decode(kind, document)


def _no_number(_: str) -> None:
    """What NaN and Infinity are read as; json.loads knows them, JSON does not."""


def decode(kind: type[T], document: Json) -> T:
    """The value of type ``kind`` in parsed JSON. Raises ContractError."""
    if isinstance(document, Mapping) and VERSION_KEY in document and dataclasses.is_dataclass(kind):
        version = document[VERSION_KEY]
        if version != SCHEMA_VERSION:
            raise ContractError(f"{kind.__name__}: schema version {version}, this release reads {SCHEMA_VERSION}")
        document = {key: item for key, item in document.items() if key != VERSION_KEY}
    result: T = _decode(kind, document, kind.__name__)
    return result


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, document: Json, path: str) -> Any:
    if kind is Any or kind is object:
        return document
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(kind, document, path)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), document, path)
    if origin is frozenset:
        return frozenset(_decode(typing.get_args(kind)[0], item, f"{path}[]") for item in _expect(list, document, path))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        item_kind = typing.get_args(kind)[1]
        return {k: _decode(item_kind, v, f"{path}.{k}") for k, v in _expect(dict, document, path).items()}
    if origin is typing.Literal:
        if document not in typing.get_args(kind):
            raise ContractError(f"{path}: {document!r} is not one of {typing.get_args(kind)}")
        return document
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, document, path)
    return _decode_plain(kind, document, path)


def _decode_optional(kind: Any, document: Json, path: str) -> Any:
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if document is None and len(members) < len(typing.get_args(kind)):
        return None
    if len(members) == 1:
        return _decode(members[0], document, path)
    for member in members:
        try:
            return _decode(member, document, path)
        except ContractError:
            continue
    raise ContractError(f"{path}: {document!r} is none of {members}")


def _decode_tuple(args: tuple[Any, ...], document: Json, path: str) -> tuple[Any, ...]:
    items = _expect(list, document, path)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{path}[{i}]") for i, item in enumerate(items))
    if len(items) != len(args):
        raise ContractError(f"{path}: {len(items)} items, expected {len(args)}")
    return tuple(_decode(arg, item, f"{path}[{i}]") for i, (arg, item) in enumerate(zip(args, items, strict=True)))


def _decode_dataclass(kind: Any, document: Json, path: str) -> Any:
    mapping = _expect(dict, document, path)
    hints = _hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(set(mapping) - names)
    if unknown:
        raise ContractError(f"{path}: unknown key {unknown[0]!r}", "See that both sides are of the same release.")
    missing = [f.name for f in dataclasses.fields(kind) if _is_required(f) and f.name not in mapping]
    if missing:
        raise ContractError(f"{path} lacks the key {missing[0]!r}")
    try:
        return kind(**{name: _decode(hints[name], mapping[name], f"{path}.{name}") for name in names & set(mapping)})
    except TypeError as error:
        raise ContractError(f"{path}: {error}") from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _decode_plain(kind: Any, document: Json, path: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(document)
        except ValueError as error:
            raise ContractError(f"{path}: {document!r} is not a {kind.__name__}") from error
    if kind is float and isinstance(document, int) and not isinstance(document, bool):
        return _float(document, path)
    if isinstance(document, float) and not math.isfinite(document):  # 1e999 is one, too
        raise ContractError(f"{path}: {document!r} is not a finite number")
    return _expect(kind, document, path)


def _float(number: int, path: str) -> float:
    try:
        return float(number)
    except OverflowError as error:
        raise ContractError(f"{path}: a number of {number.bit_length()} bits is not a float") from error


def _expect(kind: Any, document: Json, path: str) -> Any:
    if isinstance(document, bool) and kind is not bool:
        raise ContractError(f"{path}: {document!r} is not a {kind.__name__}")
    if not isinstance(document, kind):
        raise ContractError(f"{path}: {document!r} is not a {kind.__name__}")
    return document
