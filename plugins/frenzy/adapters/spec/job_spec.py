"""The job specification at the edge: YAML, plain documents and form values to TrainingJob and back.

Everything wrong with a specification is reported at once, each with its path, its value and what
is allowed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from frenzy.adapters.spec.fields import allowed_text, field_at, job_adapter, job_schema
from frenzy.adapters.spec.refusals import field_path, refused, shown
from frenzy.adapters.spec.schedule import trigger_violations
from frenzy.adapters.spec.yaml_core import check_plain, dump_yaml, load_yaml
from frenzy.core.runs.masking import NAMES_ONLY, masked_at
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import MOST_VIOLATIONS, SpecError, Violation
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.job_rules import cross_field_violations


def job_from_yaml(text: str) -> TrainingJob:
    """The job in YAML ``text``. Raises SpecError with every violation."""
    return job_from_document(load_yaml(text))


def job_from_document(document: Any) -> TrainingJob:
    """The job in a plain ``document`` (mappings, lists, text, numbers). Raises SpecError with every violation."""
    if not isinstance(document, Mapping):
        raise refused(
            "the document",
            "nothing" if document is None else shown(document),
            f"a mapping with {', '.join(job_schema()['properties'])}",
        )
    check_plain(document)
    violations: list[Violation] = []
    job: TrainingJob | None = None
    try:
        job = job_adapter().validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        violations += (_violation(each) for each in islice(problems, MOST_VIOLATIONS))
    violations += [*_missing_sections(document), *_pattern_violations(document)]
    if job is not None and not violations:
        violations += [*cross_field_violations(job), *trigger_violations(job.trigger)]
    if violations or job is None:
        raise SpecError(sorted(violations, key=lambda each: _place(each.path)))
    return job


def job_to_document(job: TrainingJob, *, full: bool = False) -> dict[str, Any]:
    """``job`` as plain values; without what has its default value, unless ``full``."""
    document: dict[str, Any] = (
        encode(job) if full else job_adapter().dump_python(job, mode="json", exclude_defaults=True, warnings=False)
    )
    return document


def job_to_yaml(job: TrainingJob, *, full: bool = False) -> str:
    """``job`` as YAML that ``job_from_yaml`` reads back to the same job."""
    return dump_yaml(job_to_document(job, full=full))


def shown_yaml(job: TrainingJob) -> str:
    """``job`` as whoever may see its DAG sees it: of ``env`` and ``secrets`` the names only."""
    return job_to_yaml(masked_at(job, NAMES_ONLY)).strip()


# what is refused


def _violation(problem: ErrorDetails) -> Violation:
    location = problem["loc"]
    path, field = field_path(location, "the document"), field_at(location)
    if problem["type"] == "unexpected_keyword_argument":
        return Violation(path=path, value="an unknown key", allowed=_suggestion(location))
    if problem["type"] == "missing" and field is not None:
        return Violation(path=path, value="nothing", allowed=f"required: {field.get('title') or field['description']}")
    allowed = allowed_text(field) if field is not None else problem["msg"]
    return Violation(
        path=path, value="a value" if location[0] == "secrets" else shown(problem["input"]), allowed=allowed
    )


def _suggestion(location: tuple[int | str, ...]) -> str:
    """For a key that is unknown: one alike that is known there, its place elsewhere, or what is known there."""
    *section, key = location
    field = field_at(tuple(section)) or job_schema()
    names = list(field.get("items", field)["properties"])
    near = difflib.get_close_matches(str(key).lower().replace("-", "_"), names, n=1)
    places = [field_path((*section, name), "") for name in near] or [
        place for place in _all_places() if place.rpartition(".")[2] == key
    ]
    return f"did you mean {places[0]}?" if places else f"allowed here: {', '.join(names)}"


@cache
def _all_places() -> tuple[str, ...]:
    """Dotted paths of all fields, each section followed by its own."""
    places = []
    for name, field in job_schema()["properties"].items():
        places += [name, *(f"{name}.{each}" for each in field.get("properties", ()))]
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


def _missing_sections(document: Mapping[str, Any]) -> Iterator[Violation]:
    """What only a workload may leave out."""
    for name in ("model", "data") if document.get("workload") is None else ():
        if name not in document:
            yield Violation(
                path=name, value="nothing", allowed=f"required: {job_schema()['properties'][name]['title']}"
            )


def _pattern_violations(document: Mapping[str, Any]) -> Iterator[Violation]:
    for name, field in job_schema()["properties"].items():
        value = document.get(name)
        if "pattern" in field and isinstance(value, str) and value and not re.fullmatch(field["pattern"], value):
            allowed = f"{field['description']} First and last a letter or digit, at most 63 characters."
            yield Violation(path=name, value=shown(value), allowed=allowed)
