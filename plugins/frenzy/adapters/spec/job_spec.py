"""The job specification at the edge: YAML, plain documents and form values to TrainingJob and back.

Everything wrong with a specification is reported at once, each with its path, its value and what
is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from frenzy.adapters.spec.fields import SpecField, allowed_text, fields_of, object_schema
from frenzy.adapters.spec.job_form import FormField, document_from_params, job_params, job_to_params
from frenzy.adapters.spec.yaml_core import check_plain, dump_yaml, load_yaml
from frenzy.core.runs.masking import NAMES_ONLY, masked_at
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import MOST_VIOLATIONS, SpecError, Violation
from frenzy.core.values.job import TrainingJob, cross_field_violations

_SHOWN_CHARACTERS: Final = 80


def job_from_yaml(text: str) -> TrainingJob:
    """The job in YAML ``text``. Raises SpecError with every violation."""
    return job_from_document(load_yaml(text))


def job_from_params(params: Mapping[str, Any]) -> TrainingJob:
    """The job of a filled form (see ``job_params``). Raises SpecError with every violation."""
    return job_from_document(document_from_params(params))


def job_from_document(document: Any) -> TrainingJob:
    """The job in a plain ``document`` (mappings, lists, text, numbers). Raises SpecError with every violation."""
    if not isinstance(document, Mapping):
        names = ", ".join(each.name for each in fields_of(TrainingJob))
        raise SpecError([Violation(path="the document", value=_shown(document), allowed=f"a mapping with {names}")])
    check_plain(document)
    violations = list(islice(_unknown_keys(TrainingJob, document, ""), MOST_VIOLATIONS))
    job: TrainingJob | None = None
    try:
        job = _adapter().validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        violations += islice(_value_violations(error), MOST_VIOLATIONS)
    violations += _pattern_violations(document)
    if job is not None and not violations:
        violations += cross_field_violations(job)
    if violations or job is None:
        raise SpecError(sorted(violations, key=lambda each: _place(each.path)))
    return job


def job_to_document(job: TrainingJob, *, full: bool = False) -> dict[str, Any]:
    """``job`` as plain values; without what has its default value, unless ``full``."""
    document: dict[str, Any] = encode(job) if full else _without_defaults(job)
    return document


def job_to_yaml(job: TrainingJob, *, full: bool = False) -> str:
    """``job`` as YAML that ``job_from_yaml`` reads back to the same job."""
    return dump_yaml(job_to_document(job, full=full))


def shown_yaml(job: TrainingJob) -> str:
    """``job`` as whoever may see its DAG sees it: of ``env`` and ``secrets`` the names only."""
    return job_to_yaml(masked_at(job, NAMES_ONLY)).strip()


def job_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of the specification, for editors and other programs."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "TrainingJob",
        "description": (TrainingJob.__doc__ or "").strip(),
        **object_schema(TrainingJob),
    }


@cache
def _adapter() -> TypeAdapter[TrainingJob]:
    return TypeAdapter(TrainingJob)


def _without_defaults(value: Any) -> dict[str, Any]:
    found = {}
    kind: type = type(value)
    for field in fields_of(kind):
        item = getattr(value, field.name)
        if field.required or item != field.default:
            found[field.name] = _without_defaults(item) if field.is_section else encode(item)
    return found


# unknown keys


def _unknown_keys(kind: type, document: Mapping[str, Any], path: str) -> Iterator[Violation]:
    fields = {each.name: each for each in fields_of(kind)}
    for key, value in document.items():
        place = f"{path}.{key}" if path else key
        if key not in fields:
            yield Violation(path=place, value="an unknown key", allowed=_suggestion(key, kind, path))
        else:
            yield from _unknown_below(fields[key], value, place)


def _unknown_below(field: SpecField, value: Any, path: str) -> Iterator[Violation]:
    if dataclasses.is_dataclass(field.kind) and isinstance(field.kind, type) and isinstance(value, Mapping):
        yield from _unknown_keys(field.kind, value, path)
    elif dataclasses.is_dataclass(field.item_kind) and isinstance(field.item_kind, type) and isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, Mapping):
                yield from _unknown_keys(field.item_kind, item, f"{path}[{index}]")


def _suggestion(key: str, kind: type, path: str) -> str:
    names = [each.name for each in fields_of(kind)]
    elsewhere = [place for place in _all_places() if place.rpartition(".")[2] == key]
    near = difflib.get_close_matches(key.lower().replace("-", "_"), names, n=1)
    if near:
        return f"did you mean {f'{path}.{near[0]}' if path else near[0]}?"
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"allowed here: {', '.join(names)}"


@cache
def _all_places() -> tuple[str, ...]:
    """Dotted paths of all fields, each section followed by its own."""
    places = []
    for field in fields_of(TrainingJob):
        places.append(field.name)
        if dataclasses.is_dataclass(field.kind) and isinstance(field.kind, type):
            places += [f"{field.name}.{each.name}" for each in fields_of(field.kind)]
    return tuple(places)


def _place(path: str) -> int:
    """Where a path's field stands in the specification; for the order of the violations."""
    places = _all_places()
    names = re.sub(r"\[\d+\]", "", path).split(".")
    for length in (2, 1):
        place = ".".join(names[:length])
        if place in places:
            return places.index(place)
    return len(places)


# refused values


def _value_violations(error: ValidationError) -> Iterator[Violation]:
    for each in error.errors(include_url=False):
        location = each["loc"]
        field = _field_at(location)
        if each["type"] == "missing" and field is not None:
            allowed = f"required: {field.doc.text}" if field.doc.text else "required"
            yield Violation(path=_dotted(location), value="nothing", allowed=allowed)
        else:
            allowed = allowed_text(field) if field is not None else each["msg"]
            value = "a value" if location[0] == "secrets" else _shown(each["input"])
            yield Violation(path=_dotted(location), value=value, allowed=allowed)


def _field_at(location: tuple[int | str, ...]) -> SpecField | None:
    """The innermost field that ``location`` passes through."""
    kind: Any = TrainingJob
    field: SpecField | None = None
    for step in location:
        if not (dataclasses.is_dataclass(kind) and isinstance(kind, type)) or isinstance(step, int):
            continue
        found = next((each for each in fields_of(kind) if each.name == step), None)
        if found is None:
            return field
        field, kind = found, found.item_kind or found.kind
    return field


def _pattern_violations(document: Mapping[str, Any]) -> Iterator[Violation]:
    for field in fields_of(TrainingJob):
        value = document.get(field.name)
        if field.doc.pattern and isinstance(value, str) and value and not re.fullmatch(field.doc.pattern, value):
            allowed = f"{field.doc.text} First and last a letter or digit, at most 63 characters."
            yield Violation(path=field.name, value=_shown(value), allowed=allowed)


def _dotted(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return text.removeprefix(".")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


__all__ = [
    "FormField",
    "job_from_document",
    "job_from_params",
    "job_from_yaml",
    "job_params",
    "job_schema",
    "job_to_document",
    "job_to_params",
    "job_to_yaml",
    "shown_yaml",
]
