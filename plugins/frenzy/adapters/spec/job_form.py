"""The specification as a flat form: one field for each scalar, with its section.

Airflow's trigger form knows no nesting, so the field ``global_batch_size`` of ``training`` is the
parameter ``training__global_batch_size``. What has no flat form (a model config, callbacks,
adapters) is one field that takes JSON.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from frenzy.adapters.spec.fields import SpecField, field_schema, fields_of
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.job import TrainingJob

SEPARATOR: Final = "__"
GENERAL_SECTION: Final = "Job"
_LONG_TEXTS: Final = frozenset({"description"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One parameter of the form: ``Param(default, description=..., **schema)``.

    path: (section, field), or (field,) at the top level. schema: JSON schema with ``title`` and
    ``section``. has_default False: the user must fill it in.
    """

    name: str
    path: tuple[str, ...]
    has_default: bool
    default: Any
    description: str
    schema: Mapping[str, Any]


def job_params(defaults: TrainingJob | None = None) -> tuple[FormField, ...]:
    """The form's fields in the specification's order; filled in from ``defaults`` where given."""
    filled = {} if defaults is None else job_to_params(defaults)
    return tuple(_form_field(path, section, field, filled) for path, section, field in _flat_fields())


def job_to_params(job: TrainingJob) -> dict[str, Any]:
    """The form's values that stand for ``job``."""
    document = encode(job)
    return {SEPARATOR.join(path): _at(document, path) for path, _, _ in _flat_fields()}


def document_from_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The plain document that a filled form stands for; what was left empty has its default.

    Raises SpecError for a parameter that is not of the form.
    """
    fields = {SEPARATOR.join(path): (path, field) for path, _, field in _flat_fields()}
    unknown = [_unknown(name, tuple(fields)) for name in params if name not in fields]
    if unknown:
        raise SpecError(unknown)
    document: dict[str, Any] = {}
    for name, (path, field) in fields.items():
        if name in params and not _is_left_empty(field, params[name]):
            _put(document, path, params[name])
    for field in fields_of(TrainingJob):
        if field.is_section and field.required:
            document.setdefault(field.name, {})
    return document


@cache
def _flat_fields() -> tuple[tuple[tuple[str, ...], str, SpecField], ...]:
    return tuple(_walk_fields())


def _walk_fields() -> Iterator[tuple[tuple[str, ...], str, SpecField]]:
    """(path, section, field) of each form field; the job's own fields first."""
    top = fields_of(TrainingJob)
    yield from (((each.name,), GENERAL_SECTION, each) for each in top if not each.is_section)
    for section in top:
        if section.is_section:
            for each in fields_of(section.kind):
                yield (section.name, each.name), section.doc.text, each


def _form_field(path: tuple[str, ...], section: str, field: SpecField, filled: Mapping[str, Any]) -> FormField:
    name = SEPARATOR.join(path)
    schema = field_schema(field)
    description = schema.pop("description", "")
    default = filled.get(name, schema.pop("default", None))
    schema.pop("default", None)
    if field.kind is not str:
        schema.pop("examples", None)
    if field.name in _LONG_TEXTS:
        schema["format"] = "multiline"
    if default in ([], {}, "") and isinstance(schema["type"], str):
        schema["type"] = [schema["type"], "null"]  # what the form sends for a field left empty
    schema |= {"title": field.name.replace("_", " ").capitalize(), "section": section}
    has_default = name in filled or not field.required
    return FormField(
        name=name, path=path, has_default=has_default, default=default, description=description, schema=schema
    )


def _is_left_empty(field: SpecField, value: Any) -> bool:
    """A form sends null or an empty text for a field nobody filled in."""
    if value is None:
        return True
    return value == "" and (field.optional or field.required)


def _unknown(name: str, names: tuple[str, ...]) -> Violation:
    near = difflib.get_close_matches(name, names, n=1)
    allowed = f"did you mean {near[0]}?" if near else "see the form's fields"
    return Violation(path=name, value="an unknown parameter", allowed=allowed)


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        document = document.setdefault(step, {})
    document[path[-1]] = value
