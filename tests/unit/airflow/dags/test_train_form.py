"""The trigger form is the specification; presets fill what the user leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.param import ParamsDict
from airflow.serialization.serialized_objects import DagSerialization

from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.airflow.dags.train_form import PRESET, SAVE_AS_JOB, form, job_of_form
from frenzy.core.values.errors import SpecError

PRESET_TEXT = """
name: base
model: {config: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 2, vocab_size: 264}}
data: {path: words.txt, sequence_length: 32}
training: {max_steps: 10, learning_rate: 0.01}
"""


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(PRESET_TEXT, encoding="utf-8")
    return tmp_path


def submitted(presets: Path, **changed: Any) -> dict[str, Any]:
    """The form as it arrives when the user changes only these fields."""
    return {**{name: param.value for name, param in form(presets).items()}, **changed}


def test_every_field_has_a_section_and_those_of_the_form_say_what_they_take(presets: Path) -> None:
    params = form(presets)
    assert all(param.schema.get("section") for param in params.values())
    assert params[PRESET].schema["enum"] == ["none", "base"]
    assert "boolean" in params[SAVE_AS_JOB].schema["type"]


def test_only_the_name_has_a_star(presets: Path) -> None:
    assert {name for name, each in form(presets).items() if "null" not in each.schema["type"]} == {"name"}


def test_airflow_makes_no_run_of_an_untouched_form_and_one_of_a_preset_with_a_name(presets: Path) -> None:
    with DAG("frenzy_train", schedule=None, params=form(presets)) as dag:
        pass
    served = DagSerialization.from_dict(DagSerialization.to_dict(dag)).params
    with pytest.raises(Exception, match="Invalid input for param name"):
        served.deep_merge({}).validate()
    with pytest.raises(Exception, match="Invalid input for param name"):
        served.deep_merge({PRESET: "base", "name": ""}).validate()
    filled = served.deep_merge({PRESET: "base", "name": "mine"}).validate()
    assert job_of_form(filled, presets) == replace(job_from_yaml(PRESET_TEXT), name="mine")


def test_a_task_of_a_run_without_a_name_goes_on_with_its_presets(
    presets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "train.monitor")
    params = ParamsDict(form(presets))
    params.update({PRESET: "base", "name": None})
    assert job_of_form(params.validate(), presets) == job_from_yaml(PRESET_TEXT)


def test_a_field_that_is_emptied_has_its_default(presets: Path) -> None:
    emptied = {name: None for name in form(presets) if name != "name"}
    params = ParamsDict({name: each for name, each in form(presets).items() if "enum" not in each.schema})
    params.update({name: value for name, value in {**emptied, "name": "mine"}.items() if name in params})
    params.validate()
    job = job_of_form({**emptied, PRESET: "base", "name": "mine"}, presets)
    assert job == replace(job_from_yaml(PRESET_TEXT), name="mine")


@pytest.mark.parametrize(
    ("name", "value"),
    [("training__global_batch_size", 0), ("objective", "speed"), ("name", "No Spaces"), ("training__lora", 3)],
)
def test_airflow_refuses_a_bad_value(presets: Path, name: str, value: Any) -> None:
    params = ParamsDict(form(presets))
    with pytest.raises(Exception, match="Invalid input"):
        params.update({name: value})
        params.validate()


def test_a_preset_alone_is_the_preset(presets: Path) -> None:
    assert job_of_form(submitted(presets, **{PRESET: "base"}), presets) == job_from_yaml(PRESET_TEXT)


def test_what_the_user_changes_overrides_the_preset(presets: Path) -> None:
    job = job_of_form(submitted(presets, **{PRESET: "base", "name": "mine", "training__max_steps": 50}), presets)
    assert (job.name, job.training.max_steps, job.training.learning_rate) == ("mine", 50, 0.01)


def test_choosing_an_alternative_takes_back_the_presets(presets: Path) -> None:
    chosen = {PRESET: "base", "training__epochs": 2.0, "model__path": "/models/mine"}
    job = job_of_form(submitted(presets, **chosen), presets)
    assert (job.training.epochs, job.training.max_steps) == (2.0, None)
    assert (job.model.path, job.model.config) == ("/models/mine", None)


def test_without_a_preset_what_is_missing_is_named(presets: Path) -> None:
    with pytest.raises(SpecError) as caught:
        job_of_form(submitted(presets), presets)
    assert {"name", "data.path"} <= {each.path for each in caught.value.violations}
