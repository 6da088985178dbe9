"""The specification as Airflow's flat form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from tests.unit.adapters.job_strategies import jobs

from frenzy.adapters.spec.job_form import FormField, document_from_params, job_params, job_to_params
from frenzy.adapters.spec.job_spec import job_from_document, job_from_yaml
from frenzy.core.values.errors import SpecError
from frenzy.core.values.job import TrainingJob

FILLED = {
    "name": "tiny",
    "model__config": {"model_type": "gpt2"},
    "data__path": "text.txt",
    "training__max_steps": 3,
}


def made(params: dict[str, Any]) -> TrainingJob:
    return job_from_document(document_from_params(params))


def field(name: str, fields: tuple[FormField, ...] | None = None) -> FormField:
    return next(each for each in fields or job_params() if each.name == name)


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_form_values_stand_for_the_same_job(job: TrainingJob) -> None:
    assert made(job_to_params(job)) == job


@settings(max_examples=20, deadline=None)
@given(jobs)
def test_a_form_filled_from_a_job_gives_that_job(job: TrainingJob) -> None:
    assert made(job_to_params(job)) == job


@settings(max_examples=20, deadline=None)
@given(jobs)
def test_every_valid_value_passes_the_forms_own_check(job: TrainingJob) -> None:
    from jsonschema import Draft7Validator

    values = job_to_params(job)
    for each in job_params():
        assert not list(Draft7Validator(each.schema).iter_errors(values[each.name])), each.name


def test_only_what_the_job_needs_has_no_default() -> None:
    assert [each.name for each in job_params() if each.default is None and each.schema["type"] == "string"] == [
        "name",
        "data__path",
    ]


def test_fields_have_section_title_help_and_limits() -> None:
    batch = field("training__global_batch_size")
    assert (batch.path, batch.default, batch.description) == (
        ("training", "global_batch_size"),
        32,
        "Sequences per optimizer step.",
    )
    assert batch.schema == {
        "type": "integer",
        "minimum": 1,
        "maximum": 1_000_000,
        "title": "Global batch size",
        "section": "Training",
    }
    assert field("objective").schema["enum"] == ["time", "cost"]
    assert field("description").schema["format"] == "multiline"
    assert field("constraints__gpu_types").schema["type"] == ["array", "null"]


def test_what_is_left_empty_has_its_default() -> None:
    job = made({**FILLED, "constraints__gpu_types": None, "model__path": "", "evaluation__prompt": None, "env": None})
    assert job == job_from_yaml(
        "{name: tiny, model: {config: {model_type: gpt2}}, data: {path: text.txt}, training: {max_steps: 3}}"
    )


def test_a_required_field_left_empty_is_refused() -> None:
    with pytest.raises(SpecError, match="data.path: nothing is refused; required"):
        made({**FILLED, "data__path": ""})


def test_an_unknown_parameter_is_refused_with_the_likely_one() -> None:
    with pytest.raises(SpecError, match="did you mean training__max_steps"):
        made({**FILLED, "training_max_steps": 3})


def test_a_bad_value_is_refused_by_its_path() -> None:
    with pytest.raises(SpecError, match=r"training\.max_steps: 0 is refused; a whole number at least 1"):
        made({**FILLED, "training__max_steps": 0})
