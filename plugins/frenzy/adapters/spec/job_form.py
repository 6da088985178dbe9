"""The specification as a flat form: one field for each scalar, with its section.

Airflow's trigger form knows no nesting, so the field ``global_batch_size`` of ``training`` is the
parameter ``training__global_batch_size``. What has no flat form (a model config, callbacks,
adapters) is one field that takes JSON.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from frenzy.adapters.spec.fields import Schema, is_optional, job_schema, kind_of
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
    ``section``.
    """

    name: str
    path: tuple[str, ...]
    default: Any
    description: str
    schema: Mapping[str, Any]


def job_params() -> tuple[FormField, ...]:
    """The form's fields in the specification's order."""
    return tuple(_form_field(path, section, field) for path, section, field in _flat_fields())


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
    for name, field in job_schema()["properties"].items() if document.get("workload") is None else ():
        if _is_section(field) and field.get("required"):
            document.setdefault(name, {})
    return document


def _is_section(field: Schema) -> bool:
    return "properties" in field and not is_optional(field)


@cache
def _flat_fields() -> tuple[tuple[tuple[str, ...], str, Schema], ...]:
    """(path, section, field) of each form field; the job's own fields first."""
    fields = job_schema()["properties"]
    return (
        *(((name,), GENERAL_SECTION, each) for name, each in fields.items() if not _is_section(each)),
        *(
            ((section, name), fields[section]["title"], each)
            for section in fields
            if _is_section(fields[section])
            for name, each in fields[section]["properties"].items()
        ),
    )


def _form_field(path: tuple[str, ...], section: str, field: Schema) -> FormField:
    name = SEPARATOR.join(path)
    schema = {key: each for key, each in field.items() if key not in ("description", "default")}
    default = field.get("default")
    if kind_of(field) != "string":
        schema.pop("examples", None)
    if path[-1] in _LONG_TEXTS:
        schema["format"] = "multiline"
    if default in ([], {}, "") and not is_optional(field):
        schema["type"] = [schema["type"], "null"]  # what the form sends for a field left empty
    return FormField(
        name=name,
        path=path,
        default=default,
        description=field["description"],
        schema=schema | {"title": path[-1].replace("_", " ").capitalize(), "section": section},
    )


def _is_left_empty(field: Schema, value: Any) -> bool:
    """A form sends null or an empty text for a field nobody filled in."""
    if value is None:
        return True
    return value == "" and (is_optional(field) or "default" not in field)


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
