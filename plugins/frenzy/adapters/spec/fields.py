"""The fields of the specification's dataclasses: type, constraints, help and default of each.

One reading of the annotations serves parsing (what is allowed), the JSON schema and the form.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final

import annotated_types as at

from frenzy.core.values.codec import encode
from frenzy.core.values.job import Doc

_MISSING: Final = dataclasses.MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecField:
    """One field. kind: its type without ``| None``; constraints: of annotated_types."""

    name: str
    kind: Any
    optional: bool
    constraints: tuple[Any, ...]
    doc: Doc
    default: Any

    @property
    def required(self) -> bool:
        return self.default is _MISSING

    @property
    def is_section(self) -> bool:
        """A nested specification that is always there."""
        return dataclasses.is_dataclass(self.kind) and not self.optional

    @property
    def choices(self) -> tuple[Any, ...]:
        """The only values allowed, () when the type does not list them."""
        if typing.get_origin(self.kind) is typing.Literal:
            return typing.get_args(self.kind)
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(member.value for member in self.kind)
        return ()

    @property
    def item_kind(self) -> Any:
        """Type of a list's items; None for anything else."""
        return typing.get_args(self.kind)[0] if typing.get_origin(self.kind) is tuple else None

    @property
    def is_mapping(self) -> bool:
        origin = typing.get_origin(self.kind)
        return isinstance(origin, type) and issubclass(origin, Mapping)


@cache
def fields_of(kind: type) -> tuple[SpecField, ...]:
    """The fields of a specification dataclass, in their order."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(_field(each, hints[each.name]) for each in dataclasses.fields(kind))


def _field(field: dataclasses.Field[Any], hint: Any) -> SpecField:
    metadata: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *rest = typing.get_args(hint)
        metadata = tuple(rest)
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = [member for member in members if member is not type(None)]
    default = field.default if field.default_factory is _MISSING else field.default_factory()
    return SpecField(
        name=field.name,
        kind=kinds[0],
        optional=len(kinds) < len(members),
        constraints=tuple(each for each in metadata if isinstance(each, at.BaseMetadata | at.GroupedMetadata)),
        doc=next((each for each in metadata if isinstance(each, Doc)), Doc("")),
        default=default,
    )


def allowed_text(field: SpecField) -> str:
    """What the field takes, as the end of a sentence."""
    text = _kind_text(field)
    return f"{text}, or nothing" if field.optional else text


def _kind_text(field: SpecField) -> str:
    if field.choices:
        return f"one of {', '.join(str(each) for each in field.choices)}"
    if field.item_kind is not None or field.is_mapping:
        most = next((most for name, most in schema_limits(field).items() if name.startswith("max")), None)
        return _many_text(field) + (f", at most {most} of them" if most else "")
    if dataclasses.is_dataclass(field.kind) and isinstance(field.kind, type):
        return f"a mapping with {', '.join(each.name for each in fields_of(field.kind))}"
    return _scalar_text(field)


def _many_text(field: SpecField) -> str:
    if field.item_kind is not None:
        return "a list of text" if field.item_kind is str else "a list of mappings"
    texts_only = typing.get_args(field.kind)[1] is str
    return "a mapping of names to text (in quotes where it looks like a number)" if texts_only else "a mapping"


def _scalar_text(field: SpecField) -> str:
    if field.kind is bool:
        return "true or false"
    if field.kind is str:
        limits = schema_limits(field)
        least, most = limits.get("minLength", 0), limits.get("maxLength")
        length = f" of {least} to {most} characters" if most else (" that is not empty" if least else "")
        return f"text{length} (in quotes where it looks like a number)"
    return ("a whole number" if field.kind is int else "a number") + _range_text(field)


def _range_text(field: SpecField) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = schema_limits(field)
    parts = [f"{text} {limits[key]}" for key, text in words.items() if key in limits]
    return f" {' and '.join(parts)}" if parts else ""


def schema_limits(field: SpecField) -> dict[str, Any]:
    """The field's constraints as keywords of JSON schema."""
    limits: dict[str, Any] = {}
    for each in field.constraints:
        if isinstance(each, at.Ge):
            limits["minimum"] = each.ge
        elif isinstance(each, at.Gt):
            limits["exclusiveMinimum"] = each.gt
        elif isinstance(each, at.Le):
            limits["maximum"] = each.le
        elif isinstance(each, at.Lt):
            limits["exclusiveMaximum"] = each.lt
        elif isinstance(each, at.Len):
            unit = "Items" if field.item_kind is not None else "Properties" if field.is_mapping else "Length"
            limits |= {f"min{unit}": each.min_length} if each.min_length else {}
            limits |= {f"max{unit}": each.max_length} if each.max_length is not None else {}
    return limits


_TYPE_NAMES: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def field_schema(field: SpecField) -> dict[str, Any]:
    """JSON schema of the field, with its help, examples, limits and default."""
    schema = _type_schema(field) | schema_limits(field)
    if field.doc.text:
        schema["description"] = field.doc.text
    if field.doc.examples:
        schema["examples"] = list(field.doc.examples)
    if field.doc.pattern:
        schema["pattern"] = field.doc.pattern
    if not field.required:
        schema["default"] = encode(field.default)
    return schema


def object_schema(kind: type) -> dict[str, Any]:
    """JSON schema of a specification dataclass; unknown keys are refused."""
    fields = fields_of(kind)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {each.name: field_schema(each) for each in fields},
        "additionalProperties": False,
    }
    required = [each.name for each in fields if each.required]
    return schema | ({"required": required} if required else {})


def _type_schema(field: SpecField) -> dict[str, Any]:
    if field.choices:
        return {"type": "string", "enum": list(field.choices)}
    schema = _kind_schema(field.kind, field)
    if field.optional:
        schema["type"] = [schema["type"], "null"]
    return schema


def _kind_schema(kind: Any, field: SpecField) -> dict[str, Any]:
    if field.item_kind is not None:
        item = {"type": "string"} if field.item_kind is str else object_schema(field.item_kind)
        return {"type": "array", "items": item}
    if field.is_mapping:
        texts_only = typing.get_args(kind)[1] is str
        return {"type": "object"} | ({"additionalProperties": {"type": "string"}} if texts_only else {})
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return object_schema(kind)
    return {"type": _TYPE_NAMES[kind]}
