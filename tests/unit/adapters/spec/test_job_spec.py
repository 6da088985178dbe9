"""The specification at the edge: what is read back, and how a bad one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.unit.adapters.job_strategies import jobs

from frenzy.adapters.spec.fields import job_schema
from frenzy.adapters.spec.job_spec import job_from_document, job_from_yaml, job_to_document, job_to_yaml
from frenzy.core.values.errors import SpecError
from frenzy.core.values.job import CheckpointSpec, Precision, TrainingJob

MINIMAL = """
name: tiny
model: {config: {model_type: gpt2}}
data: {path: text.txt}
training: {max_steps: 3}
"""


def refusals(text: str) -> dict[str, str]:
    """Path to (value, allowed) of every violation in ``text``."""
    with pytest.raises(SpecError) as refused:
        job_from_yaml(text)
    return {each.path: f"{each.value} -> {each.allowed}" for each in refused.value.violations}


def changed(**sections: Any) -> str:
    document: dict[str, Any] = job_to_document(job_from_yaml(MINIMAL))
    for name, value in sections.items():
        both = isinstance(value, dict) and isinstance(document.get(name), dict)
        document[name] = {**document[name], **value} if both else value
    return json.dumps(document)


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_yaml_reads_back_to_the_same_job(job: TrainingJob) -> None:
    assert job_from_yaml(job_to_yaml(job)) == job
    assert job_from_yaml(job_to_yaml(job, full=True)) == job


@settings(max_examples=30, deadline=None)
@given(jobs)
def test_json_is_yaml_too(job: TrainingJob) -> None:
    assert job_from_yaml(json.dumps(job_to_document(job))) == job


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[4] / "include/jobs").glob("*.yaml")), ids=lambda p: p.stem
)
def test_the_sample_jobs_are_valid(path: Path) -> None:
    job = job_from_yaml(path.read_text())
    assert job_from_yaml(job_to_yaml(job)) == job


def test_what_a_person_writes_is_what_arrives() -> None:
    job = job_from_yaml(
        """
name: tiny
model: {config: {model_type: gpt2, dropout: 1e-1, layers: 012, tied: true, act: off, date: 2026-01-01}}
data: {path: text.txt}
training: {max_steps: 3, learning_rate: 3e-4, gradient_checkpointing: on, precision: fp32}
constraints: {deadline: 2027-01-31T18:00:00Z}
env: {TIMES: "1:30"}
"""
    )
    assert job.model.config == {
        "model_type": "gpt2",
        "dropout": 0.1,
        "layers": 12,
        "tied": True,
        "act": "off",
        "date": "2026-01-01",
    }
    assert (job.training.learning_rate, job.training.gradient_checkpointing) == (3e-4, "on")
    assert job.training.precision is Precision.FP32
    assert job.constraints.deadline == "2027-01-31T18:00:00Z"
    assert job.env == {"TIMES": "1:30"}


def test_what_is_left_out_has_its_default() -> None:
    job = job_from_yaml(MINIMAL)
    assert job.checkpoint == CheckpointSpec()
    assert job_to_document(job) == {
        "name": "tiny",
        "model": {"config": {"model_type": "gpt2"}},
        "data": {"path": "text.txt"},
        "training": {"max_steps": 3},
    }


def test_aliases_and_merges_work() -> None:
    text = f"{MINIMAL}\nenv: {{<<: &more {{A: x}}, B: y}}\nsecrets: {{C: 'env:D'}}"
    assert job_from_yaml(text).env == {"A": "x", "B": "y"}


def test_every_violation_is_reported_in_the_order_of_the_fields() -> None:
    found = refusals(
        """
name: tiny
model: {config: {model_type: gpt2}, tokeniser: byte}
data: {path: 3, sequence_length: 1}
training: {max_steps: 2.5, global_batch_size: 0, precision: bf8, lora: {rank: 0}}
priority: high
"""
    )
    assert list(found) == [
        "model.tokeniser",
        "data.path",
        "data.sequence_length",
        "training.global_batch_size",
        "training.max_steps",
        "training.precision",
        "training.lora.rank",
        "priority",
    ]
    assert found["training.global_batch_size"] == "0 -> a whole number at least 1 and at most 1000000"
    assert found["training.max_steps"] == "2.5 -> a whole number at least 1 and at most 1000000000, or nothing"
    assert found["training.precision"].endswith("one of fp32, bf16, fp16, autocast-bf16")
    assert found["training.lora.rank"] == "0 -> a whole number at least 1 and at most 1024"
    assert found["priority"].startswith("'high' -> a whole number")


def test_a_written_config_has_no_tokenizer_of_its_own() -> None:
    found = refusals(changed(model={"tokenizer": "model"}))
    assert found["model.tokenizer"].endswith("a model.config has no tokenizer of its own: give byte, train or a folder")


@pytest.mark.parametrize(
    ("document", "path", "hint"),
    [
        (changed(training={"global_batch_sise": 3}), "training.global_batch_sise", "training.global_batch_size?"),
        (changed(learning_rate=1), "learning_rate", "did you mean training.learning_rate?"),
        (changed(Data={}), "Data", "did you mean data?"),
        (changed(training={"lora": {"rnk": 3}}), "training.lora.rnk", "did you mean training.lora.rank?"),
        (changed(training={"callbacks": [{"path": "a:B", "arg": {}}]}), "training.callbacks[0].arg", "args?"),
        (changed(model={"zzz": 1}), "model.zzz", "allowed here: config, path, hub_id"),
    ],
)
def test_an_unknown_key_is_refused_with_the_likely_one(document: str, path: str, hint: str) -> None:
    assert hint in refusals(document)[path]


@pytest.mark.parametrize(
    ("document", "path", "allowed"),
    [
        (changed(training={"max_steps": True}), "training.max_steps", "whole number"),
        (changed(training={"max_steps": "3"}), "training.max_steps", "whole number"),
        (changed(training={"learning_rate": "fast"}), "training.learning_rate", "a number above 0 and below 10"),
        (changed(training=[]), "training", "a mapping with global_batch_size"),
        (changed(evaluation={"enabled": "yes"}), "evaluation.enabled", "true or false"),
        (changed(constraints={"gpu_types": "a100"}), "constraints.gpu_types", "a list of text"),
        (changed(env={"A": 1}), "env.A", "text"),
        (changed(team=""), "team", "text of 1 to 63 characters"),
        (changed(name="Upper"), "name", "Lower-case"),
        (changed(name="trailing-\n"), "name", "Lower-case"),
        (changed(data={"path": None}), "data.path", "text"),
        (changed(training={"epochs": 1}), "training.max_steps", "exactly one"),
        (changed(secrets={"TOKEN": "hunter2"}), "secrets.TOKEN", "env:NAME"),
        (changed(secrets={"TOKEN": "env:AIRFLOW__CORE__FERNET_KEY"}), "secrets.TOKEN", "for no job"),
        (changed(secrets={"TOKEN": "env:FRENZY_DATABASE"}), "secrets.TOKEN", "for no job"),
        (changed(secrets={"FRENZY_RUN_KEY": "env:MINE"}), "secrets.FRENZY_RUN_KEY", "choose another"),
        (changed(env={"FRENZY_RUN_KEY": "another"}), "env.FRENZY_RUN_KEY", "choose another"),
        (changed(env={"AIRFLOW__CORE__FERNET_KEY": "x"}), "env.AIRFLOW__CORE__FERNET_KEY", "choose another"),
        (changed(env={"NVIDIA_VISIBLE_DEVICES": "all"}), "env.NVIDIA_VISIBLE_DEVICES", "leave it out"),
        (changed(env={"TMPDIR": "/mine"}), "env.TMPDIR", "leave it out"),
        (changed(env={"A=B": "x"}), "env.A=B", "letters, digits"),
        (changed(training={"optimizer": "lion"}), "training.optimizer", "adamw-8bit"),
        (changed(validation={"every_steps": 5}, data={"validation_fraction": 0}), "validation.every_steps", "held out"),
        (changed(validation={"patience": 3}), "validation.patience", "only with validation.every_steps"),
        (changed(validation={"every_steps": 5, "final_model": "best"}), "validation.final_model", "keep_best"),
        (changed(validation={"evry_steps": 5}), "validation.evry_steps", "every_steps"),
        (changed(validation={"path": "more.txt"}), "data.validation_fraction", "0 beside validation.path"),
        (changed(tracking=[{"kind": "tensorbord"}]), "tracking[0].kind", "tensorboard"),
        (changed(tracking=[{"kind": "mlflow"}]), "tracking[0].uri", "MLflow's server"),
        (changed(tracking=[{"kind": "wandb"}, {"kind": "wandb"}]), "tracking[1].kind", "once"),
        (changed(tracking=[{"kind": "wandb", "uri": "https://me:pass@w.org"}]), "tracking[0].uri", "secrets"),
        (changed(tracking=[{"kind": "mlflow", "uri": "http://a.org?key=1"}]), "tracking[0].uri", "secrets"),
        (changed(tracking=[{"kind": "mlflow", "uri": "file:///etc"}]), "tracking[0].uri", "http(s)://"),
        (
            changed(tracking=[{"kind": "mlflow", "uri": "http://a.org", "mode": "offline"}]),
            "tracking[0].uri",
            "leave it out",
        ),
        (changed(tracking=[{"kind": "tensorboard", "project": "p"}]), "tracking[0].project", "leave out"),
        (
            changed(model={"config": {"model_type": "gpt2", "vocab_size": 256}}),
            "model.config.vocab_size",
            "at least 257, the tokens of the tokenizer 'byte'",
        ),
        (
            changed(model={"config": {"model_type": "gpt2", "vocab_size": 999}, "tokenizer": "train"}),
            "model.config.vocab_size",
            "at least 4096, the tokens of the tokenizer 'train' (model.tokenizer_vocab_size)",
        ),
        (changed(training={"lr_schedule": "wds"}), "training.lr_schedule", "wsd"),
        (changed(training={"lr_min_share": 0.1}), "training.lr_min_share", "constant has no decay"),
        (changed(training={"warmup_steps": 1, "warmup_share": 0.1}), "training.warmup_share", "at most one"),
        (
            changed(training={"compile": True, "kernels": "liger"}),
            "training.compile",
            "not with training.kernels = liger",
        ),
        (
            changed(training={"attention": "flash_attention_2", "precision": "fp32"}),
            "training.attention",
            "computes in 16 bits",
        ),
        (
            changed(training={"attention": "flash_attention_2"}, data={"document_masks": True}),
            "training.attention",
            "data.document_masks needs sdpa or eager",
        ),
        (changed(data={"messages": {}}), "data.messages.template", "'byte' has no chat template of its own"),
        (changed(data={"messages": {"template": "{{ messages }}"}}), "data.messages.template", "put {% generation %}"),
        (
            changed(data={"format": "text", "messages": {"template": "{% generation %}"}}),
            "data.format",
            "needs jsonl, parquet or arrow",
        ),
        (
            changed(training={"lora": {"double_quantization": True}}),
            "training.lora.double_quantization",
            "only with training.lora.quantization = nf4",
        ),
        (
            changed(training={"loss": "fused", "lora": {"target_modules": ["q_proj", "lm_head"]}}),
            "training.lora.target_modules",
            "leave out lm_head",
        ),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(document: str, path: str, allowed: str) -> None:
    found = refusals(document)
    assert list(found) == [path]
    assert allowed in found[path]


def test_a_secret_is_never_repeated() -> None:
    for value in ("hunter2", ["hunter2"]):
        assert "hunter2" not in str(refusals(changed(secrets={"TOKEN": value})))


def test_what_is_missing_is_named_with_its_help() -> None:
    assert refusals("training: {max_steps: 1}") == {
        "name": "nothing -> required: Lower-case letters, digits, - and _.",
        "model": "nothing -> required: Model",
        "data": "nothing -> required: Data",
    }


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        ("name: tiny\n  model: [", "line 2, column 8", "YAML"),
        ("name: tiny\nteam: a\nname: b", "line 3, column 1", "'name' is given twice"),
        ("a: {b: 1, b: 2}", "line 1, column 11", "given twice"),
        ("a: !!python/object/apply:os.getcwd []", "line 1, column 4", "YAML"),
        ("[1, 2]: x", "line 1, column 1", "plain text"),
        ("a: 1\n---\nb: 2", "line 2, column 1", "YAML"),
        ("a: *nowhere", "line 1, column 4", "YAML"),
        ("a: \x00", "the document", "YAML"),
        ("- 1\n- 2", "the document", "a mapping with name"),
        ("", "the document", "nothing -> a mapping with name"),
        ("just text", "the document", "a mapping with name"),
        ("1: a", "the document", "keys are text"),
        ("a: .nan", "a", "finite"),
        ("a: !!binary aGk=", "line 1, column 4", "the tag"),
        ("a: &x [*x]", "line 1, column 8", "stands for nothing before it"),
        ("a: " + "x" * 2_000_000, "the document", "bytes"),
    ],
)
def test_text_that_is_no_specification_is_refused_by_its_place(text: str, path: str, hint: str) -> None:
    assert hint in refusals(text)[path]


def test_aliases_cannot_blow_up_the_document() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "at most 10000 values" in refusals("\n".join(lines))["the document"]


def test_the_schema_says_what_the_parser_says() -> None:
    schema = job_schema()
    training = schema["properties"]["training"]
    assert schema["required"] == ["name"]
    assert schema["anyOf"] == [{"required": ["model", "data"]}, {"required": ["workload"]}]
    assert schema["additionalProperties"] is training["additionalProperties"] is False
    assert training["properties"]["global_batch_size"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 1_000_000,
        "description": "Sequences per optimizer step.",
        "examples": [16, 64, 256],
        "default": 32,
    }
    assert training["properties"]["precision"]["enum"] == ["fp32", "bf16", "fp16", "autocast-bf16"]
    assert training["properties"]["lora"]["type"] == ["object", "null"]
    assert schema["properties"]["name"]["pattern"]


@settings(max_examples=40, deadline=None)
@given(jobs)
def test_every_valid_job_fits_the_schema(job: TrainingJob) -> None:
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(job_schema())
    assert not list(validator.iter_errors(job_to_document(job)))
    assert not list(validator.iter_errors(json.loads(json.dumps(job_to_document(job, full=True)))))


def test_a_document_may_hold_tuples() -> None:
    document = {**job_to_document(job_from_yaml(MINIMAL)), "constraints": {"gpu_types": ("a", "b")}}
    assert job_from_document(document).constraints.gpu_types == ("a", "b")


def test_a_long_key_that_is_given_twice_is_cut() -> None:
    with pytest.raises(SpecError) as refusal:
        job_from_yaml(f"? {'k' * 100_000}\n: 1\n? {'k' * 100_000}\n: 2\n")
    assert "given twice" in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("model", "used"),
    [
        ({"config": {"model_type": "gpt2"}}, "byte"),
        ({"path": "/models/base"}, "model"),
        ({"hub_id": "org/base"}, "model"),
        ({"path": "/models/base", "tokenizer": "byte"}, "byte"),
        ({"hub_id": "org/base", "tokenizer": "/tokenizers/own"}, "/tokenizers/own"),
    ],
)
def test_a_pretrained_model_is_trained_with_its_own_tokenizer_unless_another_is_named(
    model: dict[str, Any], used: str
) -> None:
    job = job_from_document({"name": "tuned", "model": model, "data": {"path": "a.txt"}, "training": {"max_steps": 3}})
    assert job.model.tokenizer_used == used
    assert job_from_document(job_to_document(job)).model.tokenizer_used == used
