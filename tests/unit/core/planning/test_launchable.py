"""What the trainer cannot run is refused with a reason, whatever was predicted for it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from frenzy.core.models.parameters import ModelShape
from frenzy.core.planning.launchable import LaunchChoice, launch_refusal
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import DataSpec, LoraSpec, Precision, TrainingJob, TrainingSpec

SHAPE = ModelShape(
    family="llama",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=64,
    vocab_size=260,
    max_positions=64,
    tied_embeddings=False,
    embeddings=(),
    layer=(),
    head=(),
    autotp=True,
)
TRAINING = TrainingSpec(max_steps=1)
JOB = TrainingJob(name="job", training=TRAINING)
GPU = LaunchChoice(kind=DeviceKind.CUDA, zero_stage=2)
VIRTUAL = replace(GPU, kind=DeviceKind.VIRTUAL)


def on(compute_capability: str) -> LaunchChoice:
    return replace(GPU, compute_capability=compute_capability)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("kind", DeviceKind)
def test_the_default_training_runs_on_every_kind_and_stage(kind: DeviceKind, zero_stage: int) -> None:
    assert launch_refusal(JOB, SHAPE, LaunchChoice(kind=kind, zero_stage=zero_stage)) is None


def with_lora(**choices: object) -> TrainingSpec:
    return replace(TRAINING, lora=LoraSpec(**choices))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("training", "shape", "choice", "words"),
    [
        (TRAINING, replace(SHAPE, family="bert", is_encoder=True), GPU, "bert fills in masked tokens"),
        (TRAINING, replace(SHAPE, family="later"), GPU, "later was not trained by a test"),
        (replace(TRAINING, precision=Precision.FP16), SHAPE, VIRTUAL, "fp16"),
        (replace(TRAINING, attention="flash_attention_2"), SHAPE, VIRTUAL, "no kernels for a CPU"),
        (replace(TRAINING, attention="flash_attention_3"), SHAPE, VIRTUAL, "no kernels for a CPU"),
        (replace(TRAINING, attention="flash_attention_2"), SHAPE, on("7.5"), "from 8; the card has 7.5"),
        (replace(TRAINING, attention="flash_attention_3"), SHAPE, on("8.0"), "from 9 to below 10; the card has 8.0"),
        (replace(TRAINING, attention="flash_attention_3"), SHAPE, on("12.0"), "from 9 to below 10"),
        (replace(TRAINING, attention="flash_attention_2"), replace(SHAPE, family="mpt"), GPU, "nor was another one"),
        (TRAINING, replace(SHAPE, family="mpt"), GPU, "mpt has no attention of torch's own"),
        (
            replace(TRAINING, attention="eager", loss="fused"),
            replace(SHAPE, family="gemma2"),
            GPU,
            "changes its logits",
        ),
        (replace(TRAINING, loss="fused"), SHAPE, replace(GPU, tp=2), "splits the output head"),
        (replace(TRAINING, kernels="liger"), SHAPE, VIRTUAL, "liger-kernel has no kernels for a CPU"),
        (replace(TRAINING, kernels="liger"), replace(SHAPE, family="gpt2"), GPU, "the model is gpt2"),
        (replace(TRAINING, kernels="liger"), SHAPE, replace(GPU, tp=2), "not validated under tensor parallelism"),
        (replace(TRAINING, compile=True), SHAPE, VIRTUAL, "the compiler takes more than a small model"),
        (replace(TRAINING, compile=True), replace(SHAPE, family="qwen2"), GPU, "gpt2 and llama were compiled"),
        (replace(TRAINING, compile=True), SHAPE, replace(GPU, zero_stage=3), "under ZeRO stage 3"),
        (replace(TRAINING, compile=True), SHAPE, replace(GPU, tp=2), "under tensor parallelism"),
        (replace(with_lora(quantization="nf4"), compile=True), SHAPE, GPU, "with 4-bit weights"),
        (with_lora(quantization="nf4"), SHAPE, replace(GPU, zero_stage=3), "not validated on a GPU"),
        (TRAINING, SHAPE, replace(VIRTUAL, offload_optimizer=True), "memory is host memory"),
        (TRAINING, replace(SHAPE, autotp=False), replace(GPU, tp=2), "AutoTP does not split llama"),
        (TRAINING, SHAPE, replace(GPU, tp=4), r"heads \(4 and 2\) are not both a multiple"),
        (with_lora(), SHAPE, replace(GPU, tp=2), "Adapters are not split"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_no_test_has_trained_is_refused_with_its_reason(
    training: TrainingSpec, shape: ModelShape, choice: LaunchChoice, words: str
) -> None:
    refusal = launch_refusal(replace(JOB, training=training), shape, choice)
    assert refusal is not None
    assert refusal.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE
    assert re.search(words, refusal.detail)


def test_an_encoder_is_offered_a_script_for_classes() -> None:
    refusal = launch_refusal(JOB, replace(SHAPE, family="bert", is_encoder=True), GPU)
    assert "workload.task: classification" in ((refusal and refusal.remedy) or "")


@pytest.mark.parametrize(
    ("training", "choice"),
    [
        (replace(TRAINING, loss="fused", attention="eager", optimizer="adamw-8bit"), replace(GPU, zero_stage=3)),
        (with_lora(quantization="nf4", double_quantization=True), GPU),
        (with_lora(quantization="nf4"), replace(VIRTUAL, zero_stage=3)),
        (replace(TRAINING, attention="eager"), replace(VIRTUAL, tp=2)),
        (TRAINING, replace(GPU, offload_optimizer=True, tp=2)),
        (replace(TRAINING, attention="flash_attention_2"), on("8.6")),
        (replace(TRAINING, attention="flash_attention_2"), on("12.0")),
        (replace(TRAINING, attention="flash_attention_3"), on("9.0")),
        (replace(TRAINING, attention="flash_attention_3"), GPU),
        (replace(TRAINING, kernels="liger"), replace(GPU, zero_stage=3)),
        (replace(with_lora(), kernels="liger"), GPU),
        (replace(with_lora(), compile=True), GPU),
    ],
)
def test_what_was_trained_or_the_user_installs_is_not_refused(training: TrainingSpec, choice: LaunchChoice) -> None:
    assert launch_refusal(replace(JOB, training=training), SHAPE, choice) is None


@pytest.mark.parametrize("family", ["opt", "mpt"])
def test_documents_are_not_kept_apart_in_a_family_that_reads_no_position_ids(family: str) -> None:
    training = replace(TRAINING, attention="eager")
    apart = replace(JOB, training=training, data=DataSpec(path="text", document_masks=True))
    shape = replace(SHAPE, family=family)
    refusal = launch_refusal(apart, shape, GPU)
    assert refusal is not None
    assert refusal.remedy == "Set data.document_masks to false."
    assert launch_refusal(replace(JOB, training=training), shape, GPU) is None
