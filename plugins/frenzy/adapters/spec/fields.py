"""The fields of the specification as a JSON schema: type, limits, help and default of each.

Pydantic makes it of the dataclasses' annotations. It serves editors, the form, and what an error says is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from frenzy.core.values.job import TrainingJob

Schema = Mapping[str, Any]
_RANGE_WORDS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_SCALAR_WORDS: Final = {"boolean": "true or false", "integer": "a whole number", "number": "a number"}


@cache
def job_adapter() -> TypeAdapter[TrainingJob]:
    """What reads and writes a job as plain values."""
    return TypeAdapter(TrainingJob)


@cache
def job_schema() -> Schema:
    """JSON schema (2020-12) of the specification, for editors and other programs.

    Each field stands in its place: the title of a section is its name for people, and ``X | None`` is a list of types.
    """
    schema = job_adapter().json_schema(schema_generator=_Plain)
    either = [{"required": ["model", "data"]}, {"required": ["workload"]}]
    return {"$schema": _Plain.schema_dialect, **_in_place(schema, schema.pop("$defs")), "anyOf": either}


class _Plain(GenerateJsonSchema):
    """In the order of the fields, without titles made of their names."""

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_default_value(self, schema: Any) -> Any:
        return schema["default_factory"]() if "default_factory" in schema else super().get_default_value(schema)


def _in_place(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_in_place(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    node = {key: _in_place(each, definitions) for key, each in node.items()}
    if "$ref" in node:
        found = _in_place(definitions[node.pop("$ref").rpartition("/")[2]], definitions)
        found["title"] = node.pop("description", "") if "properties" in found else ""
        node = {key: each for key, each in {**found, **node}.items() if (key, each) != ("title", "")}
    if "anyOf" in node:
        kind, _nothing = node.pop("anyOf")
        node = {**kind, **node, "type": [kind["type"], "null"]}
    return node


def field_at(location: tuple[int | str, ...]) -> Schema | None:
    """The innermost field that ``location`` passes through; None where there is none."""
    found: Schema | None = None
    for step in location:
        if isinstance(step, str):
            here = job_schema() if found is None else found.get("items", found)
            if step not in here.get("properties", ()):
                break
            found = here["properties"][step]
    return found


def is_optional(field: Schema) -> bool:
    """Whether null stands for nothing."""
    return isinstance(field.get("type"), list)


def kind_of(field: Schema) -> str:
    """The field's type in JSON, but for null."""
    kind: str = field["type"][0] if is_optional(field) else field.get("type", "string")
    return kind


def allowed_text(field: Schema) -> str:
    """What the field takes, as the end of a sentence."""
    text = _kind_text(field)
    return f"{text}, or nothing" if is_optional(field) else text


def _kind_text(field: Schema) -> str:
    kind = kind_of(field)
    if "enum" in field:
        return f"one of {', '.join(str(each).lower() if isinstance(each, bool) else each for each in field['enum'])}"
    if "properties" in field:
        return f"a mapping with {', '.join(field['properties'])}"
    if kind == "string":
        return f"text{_length_text(field)} (in quotes where it looks like a number)"
    if kind in _SCALAR_WORDS:
        limits = [f"{words} {field[key]}" for key, words in _RANGE_WORDS.items() if key in field]
        return f"{_SCALAR_WORDS[kind]} {' and '.join(limits)}".rstrip()
    most = field.get("maxItems", field.get("maxProperties"))
    return _many_text(field) + (f", at most {most} of them" if most else "")


def _many_text(field: Schema) -> str:
    if kind_of(field) == "array":
        return "a list of text" if field["items"]["type"] == "string" else "a list of mappings"
    texts_only = field["additionalProperties"] is not True
    return "a mapping of names to text (in quotes where it looks like a number)" if texts_only else "a mapping"


def _length_text(field: Schema) -> str:
    least, most = field.get("minLength", 0), field.get("maxLength")
    return f" of {least} to {most} characters" if most else (" that is not empty" if least else "")
