"""The form of ``frenzy_train``: the specification as Airflow Params, presets, and saving it as a job.

A preset is a specification in ``include/jobs``. A field that is left at the form's own default is
taken from the preset, any other overrides it. Each run says its name: without one Airflow makes no run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow.sdk import Param, get_current_context, get_parsing_context

from frenzy.adapters.spec.job_form import FormField, document_from_params, job_params, job_to_params
from frenzy.adapters.spec.job_spec import job_from_document, job_from_yaml, job_to_yaml
from frenzy.core.runs.protocol import SubmitJob
from frenzy.core.values.job import TrainingJob

PRESET: Final = "preset"
SAVE_AS_JOB: Final = "save_as_job"
_NO_PRESET: Final = "none"
_OWN_FIELDS: Final = frozenset({PRESET, SAVE_AS_JOB})
_REQUIRED: Final = "name"
# Of each of these a specification has one; choosing another takes back the preset's.
_ALTERNATIVES: Final = (
    {"model__config", "model__path", "model__hub_id"},
    {"training__max_steps", "training__epochs"},
    {"training__warmup_steps", "training__warmup_share"},
    {"trigger__cron", "trigger__assets"},
)
DAG_ID: Final = "frenzy_train"
_START: Final = "Start from"
_AFTERWARDS: Final = "Keep"


def form(presets: Path) -> dict[str, Param]:
    """The Params: a preset, the specification's fields by section, the check box."""
    names = [_NO_PRESET, *sorted(each.stem for each in presets.glob("*.yaml"))]
    preset = Param(
        _NO_PRESET,
        type=["string", "null"],
        enum=names,
        title="Preset",
        section=_START,
        description_md="A specification of `include/jobs`; fields you change below override it.",
    )
    save = Param(
        False,
        type=["boolean", "null"],
        title="Save as job",
        section=_AFTERWARDS,
        description_md="Also store the specification: the job gets a DAG of its own, `job_<name>`.",
    )
    return {PRESET: preset, **{each.name: _param(each) for each in job_params()}, SAVE_AS_JOB: save}


def job_of_form(params: Mapping[str, Any], presets: Path) -> TrainingJob:
    """The job that a filled form stands for. Raises SpecError with every violation.

    Tasks read the form itself: what one task hands to another, whoever may edit XComs could change.
    """
    filled = {name: value for name, value in params.items() if name not in _OWN_FIELDS}
    name = params.get(PRESET) or _NO_PRESET
    if name == _NO_PRESET:
        return job_from_document(document_from_params(filled))
    base = job_to_params(job_from_yaml((presets / f"{name}.yaml").read_text(encoding="utf-8")))
    return job_from_document(document_from_params(_overridden(base, _changed(filled))))


def save_job(presets: str) -> str:
    """Store what the form says as a job of who pressed Trigger; its DAG's id."""
    from frenzy.airflow.connection import api_client
    from frenzy.airflow.failures import airflow_errors
    from frenzy.api import endpoints as api

    context = get_current_context()
    dag_run = context["dag_run"]
    with airflow_errors():
        text = job_to_yaml(job_of_form(context["params"], Path(presets)))
        message = SubmitJob(yaml_text=text, dag_run=(dag_run.dag_id, dag_run.run_id))
        return api_client().send(api.submit(message)).dag_id


def _param(field: FormField) -> Param:
    """Airflow marks what may not be null, and refuses it empty. All but the name have a default, or a preset's value.

    Whether that is so the task checks: of a form Airflow checks each field for itself. For a task, which Airflow checks
    the form again for, the name is none of these: a run of an earlier release may have its preset's.
    """
    schema = dict(field.schema)
    may_be_empty = field.name != _REQUIRED or get_parsing_context().task_id is not None
    if may_be_empty and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    return Param(field.default, description_md=field.description, **schema)


def _overridden(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    dropped = {name for group in _ALTERNATIVES if group & set(changed) for name in group}
    return {**{name: value for name, value in base.items() if name not in dropped}, **changed}


def _changed(filled: Mapping[str, Any]) -> dict[str, Any]:
    """What the user changed: everything that is neither empty nor the form's default."""
    defaults = {each.name: each.default for each in job_params()}
    return {name: value for name, value in filled.items() if value not in (None, "") and value != defaults.get(name)}
