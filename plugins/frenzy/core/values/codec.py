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
    return _encoder(type(value))(value)


def _encoder_for(kind: type) -> Callable[[Any], Json]:
    if dataclasses.is_dataclass(kind):
        return _encoder_of_fields(kind)
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return lambda value: {str(key): encode(item) for key, item in value.items()}
    if issubclass(kind, frozenset | set):
        return lambda value: [encode(item) for item in sorted(value)]
    if issubclass(kind, tuple | list):
        return lambda value: [encode(item) for item in value]
    if issubclass(kind, float):
        return lambda value: value if math.isfinite(value) else None
    return lambda value: value


def _encoder_of_fields(kind: type) -> Callable[[Any], Json]:
    fields = [(each.name, _OMITTED in each.metadata) for each in dataclasses.fields(kind)]

    def encoded(value: Any) -> Json:
        return {
            name: _encoder(type(item))(item)
            for name, is_omitted in fields
            if (item := getattr(value, name)) or not is_omitted
        }

    return (lambda value: _spread(kind, encoded(value))) if issubclass(kind, Inlining) else encoded


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
        result: T = _decoder(kind)(_of_this_version(kind, document), (None, kind.__name__))
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


# Where a part stands: the path of its owner, and its name, its index, or None for a member of a set.
_Path = tuple[Any, str | int | None]
_Decoder = Callable[[Json, _Path], Any]


def _text(path: _Path) -> str:
    owner, name = path
    if owner is None:
        return str(name)
    return _text(owner) + (f".{name}" if isinstance(name, str) else "[]" if name is None else f"[{name}]")


def _decoder_for(kind: Any) -> _Decoder:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda document, _: document
    if origin in (typing.Union, types.UnionType):
        return _decoder_of_optional(args)
    if origin is tuple:
        return _decoder_of_tuple(args)
    if origin is frozenset:
        return lambda document, path: frozenset(
            _decoder(args[0])(item, (path, None)) for item in _expect(list, document, path)
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda document, path: {
            key: _decoder(args[1])(item, (path, key)) for key, item in _expect(dict, document, path).items()
        }
    if origin is typing.Literal:
        return lambda document, path: _chosen(args, document, path)
    if dataclasses.is_dataclass(kind):
        return _decoder_of_fields(kind)
    return _decoder_of_plain(kind)


# A pass writes and reads thousands of documents: what depends on the type alone is found out once.
_encoder: Callable[[Any], Callable[[Any], Json]] = cache(_encoder_for)
_decoder: Callable[[Any], _Decoder] = cache(_decoder_for)


def _chosen(allowed: tuple[Any, ...], document: Json, path: _Path) -> Any:
    if document not in allowed:
        raise ContractError(f"{_text(path)}: {document!r} is not one of {allowed}")
    return document


def _decoder_of_optional(args: tuple[Any, ...]) -> _Decoder:
    members = [member for member in args if member is not type(None)]
    has_none = len(members) < len(args)

    def decoded(document: Json, path: _Path) -> Any:
        if document is None and has_none:
            return None
        if len(members) == 1:
            return _decoder(members[0])(document, path)
        for member in members:
            try:
                return _decoder(member)(document, path)
            except ContractError:
                continue
        raise ContractError(f"{_text(path)}: {document!r} is none of {members}")

    return decoded


def _decoder_of_tuple(args: tuple[Any, ...]) -> _Decoder:
    if len(args) == 2 and args[1] is Ellipsis:
        return lambda document, path: tuple(
            [_decoder(args[0])(item, (path, index)) for index, item in enumerate(_expect(list, document, path))]
        )

    def decoded(document: Json, path: _Path) -> Any:
        items = _expect(list, document, path)
        if len(items) != len(args):
            raise ContractError(f"{_text(path)}: {len(items)} items, expected {len(args)}")
        pairs = enumerate(zip(args, items, strict=True))
        return tuple(_decoder(arg)(item, (path, index)) for index, (arg, item) in pairs)

    return decoded


def _decoder_of_fields(kind: Any) -> _Decoder:
    fields, hints = dataclasses.fields(kind), typing.get_type_hints(kind)
    names = {each.name for each in fields}
    required = [each.name for each in fields if _is_required(each)]

    def decoded(document: Json, path: _Path) -> Any:
        mapping = _expect(dict, document, path)
        if issubclass(kind, Inlining):
            mapping = _gathered(kind, mapping, path)
        if not mapping.keys() <= names:
            unknown = min(mapping.keys() - names)
            raise ContractError(
                f"{_text(path)}: unknown key {unknown!r}", "See that both sides are of the same release."
            )
        for name in required:
            if name not in mapping:
                raise ContractError(f"{_text(path)} lacks the key {name!r}")
        try:
            return kind(**{name: _decoder(hints[name])(item, (path, name)) for name, item in mapping.items()})
        except TypeError as error:
            raise ContractError(f"{_text(path)}: {error}") from error

    return decoded


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


def _gathered(kind: Any, document: Mapping[str, Any], path: _Path) -> dict[str, Any]:
    """The opposite of ``_spread``. Raises ContractError for a key that is missing, or of no document."""
    found = dict(document)
    for field in dataclasses.fields(kind):
        _, keys = field.metadata.get(_INLINED, (None, {}))
        if keys and field.name in found:
            raise ContractError(f"{_text(path)}: unknown key {field.name!r}")
        missing = [key for key in keys.values() if key not in found]
        if missing and _is_required(field):
            raise ContractError(f"{_text(path)} lacks the key {missing[0]!r}")
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


def _decoder_of_plain(kind: Any) -> _Decoder:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda document, path: _member(kind, document, path)
    if kind is float:
        return _finite
    if kind is int or kind is str or kind is bool:

        def decoded(document: Json, path: _Path) -> Any:
            return document if type(document) is kind else _expect(kind, document, path)

        return decoded
    return lambda document, path: _expect(kind, document, path)


def _member(kind: type[Enum], document: Json, path: _Path) -> Enum:
    try:
        return kind(document)
    except ValueError as error:
        raise ContractError(f"{_text(path)}: {document!r} is not a {kind.__name__}") from error


def _finite(document: Json, path: _Path) -> Any:
    if isinstance(document, int) and not isinstance(document, bool):
        try:
            return float(document)
        except OverflowError as error:
            detail = f"a number of {document.bit_length()} bits is not a float"
            raise ContractError(f"{_text(path)}: {detail}") from error
    if isinstance(document, float) and not math.isfinite(document):  # 1e999 is one, too
        raise ContractError(f"{_text(path)}: {document!r} is not a finite number")
    return _expect(float, document, path)


def _expect(kind: Any, document: Json, path: _Path) -> Any:
    if not isinstance(document, kind) or (isinstance(document, bool) and kind is not bool):
        raise ContractError(f"{_text(path)}: {document!r} is not a {kind.__name__}")
    return document
