"""Frozen dataclasses to JSON and back, with a schema version.

Encoding is total; decoding is strict: an unknown key, a missing key without default or a
wrong type is a ContractError naming the path. Unions are supported as ``T | None`` only.
JSON knows neither NaN nor an infinity: a number that is none is written as null, and read as None
where None is allowed. A field may be ``inlined``: its own fields stand among its owner's.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

from frenzy.core.values.errors import ContractError

SCHEMA_VERSION: Final = 1
VERSION_KEY: Final = "schema_version"

T = TypeVar("T")
Json = Any
_INLINED: Final = "inlined"
_OMITTED: Final = "omitted_if_empty"
# Metadata of a field that is new in stored documents: empty, it is not written, and they stay word for word.
OMITTED_IF_EMPTY: Final[Mapping[str, Any]] = types.MappingProxyType({_OMITTED: True})


def inlined(part: type, *keys: str) -> Mapping[str, Any]:
    """Metadata of a field of kind ``part``: its own fields stand in its owner's document, each under its key.

    The owner is an ``Inlining``. A field that may be None is null in all its keys, and may lack some.
    """
    return {_INLINED: (part, dict(zip((each.name for each in dataclasses.fields(part)), keys, strict=True)))}


class Inlining:
    """Base of a dataclass with fields that are ``inlined``."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: Callable[[Any], Any]) -> Any:
        """pydantic calls this: it checks and describes the document, which is flat."""
        return handler(_document_form(typing.cast(Any, cls)))


@dataclasses.dataclass(frozen=True, slots=True)
class TextLimits:
    """How much of a text is read; an alias counts as often as it stands for a value."""

    max_bytes: int
    max_values: int


def encode(value: object) -> Json:
    """``value`` as plain JSON types (dict, list, str, int, float, bool, None)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = ((each, getattr(value, each.name)) for each in dataclasses.fields(value))
        document = {each.name: encode(item) for each, item in held if item or _OMITTED not in each.metadata}
        return _spread(type(value), document) if isinstance(value, Inlining) else document
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
    try:
        result: T = _decode(kind, _of_this_version(kind, document), kind.__name__)
    except RecursionError as error:  # it could be parsed, but a message that shows it needs more frames
        raise ContractError(f"{kind.__name__}: nested too deep") from error
    return result


def _of_this_version(kind: type, document: Json) -> Json:
    if not (isinstance(document, Mapping) and VERSION_KEY in document and dataclasses.is_dataclass(kind)):
        return document
    version = document[VERSION_KEY]
    if version != SCHEMA_VERSION:
        raise ContractError(f"{kind.__name__}: schema version {version}, this release reads {SCHEMA_VERSION}")
    return {key: item for key, item in document.items() if key != VERSION_KEY}


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
    if issubclass(kind, Inlining):
        mapping = _gathered(kind, mapping, path)
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


def _spread(kind: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` with the fields of inlined values in their places."""
    spread: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name not in document:  # omitted
            continue
        item = document[field.name]
        _, keys = field.metadata.get(_INLINED, (None, None))
        spread |= {field.name: item} if keys is None else {key: item and item[own] for own, key in keys.items()}
    return spread


def _gathered(kind: Any, document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The opposite of ``_spread``. Raises ContractError for a key that is missing, or of no document."""
    found = dict(document)
    for field in dataclasses.fields(kind):
        _, keys = field.metadata.get(_INLINED, (None, {}))
        if keys and field.name in found:
            raise ContractError(f"{path}: unknown key {field.name!r}")
        missing = [key for key in keys.values() if key not in found]
        if missing and _is_required(field):
            raise ContractError(f"{path} lacks the key {missing[0]!r}")
        given = {own: found.pop(key, None) for own, key in keys.items()}
        known = {own: item for own, item in given.items() if item is not None or _is_required(field)}
        found |= {field.name: known} if known else {}
    return found


@cache
def _document_form(kind: Any) -> type:
    """A dataclass like ``kind`` whose fields are the keys of its documents."""
    hints = typing.get_type_hints(kind, include_extras=True)
    form: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(kind):
        part, keys = field.metadata.get(_INLINED, (None, {field.name: field.name}))
        own = hints if part is None else typing.get_type_hints(part, include_extras=True)
        for name, key in keys.items():
            default = dataclasses.field(default=field.default, default_factory=field.default_factory)
            form.append((key, own[name] if part is None or _is_required(field) else own[name] | None, default))
    return dataclasses.make_dataclass(kind.__name__, form, kw_only=True, namespace={"__doc__": kind.__doc__})


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
