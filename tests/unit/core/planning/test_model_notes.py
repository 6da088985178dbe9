"""What is said of a job's model beside its plans, and which defaults are seldom meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.marp_values import llama_config

from frenzy.core.models.shape import model_shape
from frenzy.core.planning.model_notes import model_line, model_notes
from frenzy.core.values.job import CheckpointSpec, DataSpec, LoraSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.workload import WorkloadSpec

CONFIG = llama_config(1024, 12, 8, 128_256)
SHAPE = model_shape(CONFIG)
JOB = TrainingJob(
    name="words",
    model=ModelSpec(config=CONFIG),
    data=DataSpec(path="words.txt", sequence_length=2048),
    training=TrainingSpec(global_batch_size=64, max_steps=1000),
)
SCRIPT = replace(JOB, workload=WorkloadSpec(command=("python", "train.py")))


def test_the_line_has_parameters_weights_tokenizer_and_tokens() -> None:
    size = SHAPE.num_parameters / 1e6
    assert model_line(JOB, SHAPE, 1000) == (
        f"llama of {size:.0f} million parameters, random weights; tokenizer byte, 257 of the vocabulary of 128,256; "
        "131 million tokens in 1000 steps"
    )


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (replace(JOB, model=ModelSpec(hub_id="one/words")), "weights of the hub's one/words; tokenizer model,"),
        (replace(JOB, model=ModelSpec(path="models/words")), "weights of models/words, or random ones if it has none;"),
        (replace(JOB, checkpoint=CheckpointSpec(warm_start="newest")), "weights of newest;"),
        (SCRIPT, "parameters; the script brings weights, tokenizer and data"),
    ],
)
def test_first_weights_are_those_of_their_source(job: TrainingJob, words: str) -> None:
    assert words in (model_line(job, SHAPE, 1) or "")


def test_a_job_without_a_model_has_no_line_and_no_notes() -> None:
    job = replace(SCRIPT, model=ModelSpec())
    assert model_line(job, SHAPE, 1) is None
    assert model_notes(job, SHAPE) == ()


def test_bytes_by_default_beside_a_large_vocabulary_are_named_with_the_field() -> None:
    (note,) = model_notes(JOB, SHAPE)
    assert note.startswith("model.tokenizer is byte") and "128,256" in note


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, model=replace(JOB.model, tokenizer="byte")),
        replace(JOB, model=replace(JOB.model, tokenizer="train")),
        replace(JOB, model=ModelSpec(hub_id="one/words")),
        SCRIPT,
    ],
    ids=["bytes are asked for", "another is trained", "the model's own", "a script's"],
)
def test_a_tokenizer_that_is_chosen_or_not_used_has_no_note(job: TrainingJob) -> None:
    assert model_notes(job, SHAPE) == ()


def test_adapters_on_random_weights_are_named_with_the_field() -> None:
    training = replace(JOB.training, lora=LoraSpec())
    (note,) = model_notes(replace(JOB, model=replace(JOB.model, tokenizer="train"), training=training), SHAPE)
    assert note.startswith("training.lora adapts random weights") and "model.hub_id" in note


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, model=ModelSpec(hub_id="one/words")),
        replace(JOB, model=replace(JOB.model, tokenizer="train"), checkpoint=CheckpointSpec(warm_start="newest")),
        SCRIPT,
    ],
    ids=["the hub's", "an earlier run's", "a script's"],
)
def test_adapters_on_other_weights_have_no_note(job: TrainingJob) -> None:
    assert model_notes(replace(job, training=replace(job.training, lora=LoraSpec())), SHAPE) == ()


def test_a_vocabulary_for_bytes_has_no_note() -> None:
    assert model_notes(JOB, model_shape(llama_config(1024, 12, 8, 264))) == ()
