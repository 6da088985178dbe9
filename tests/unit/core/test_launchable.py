"""What the trainer cannot run is refused with a reason, whatever was predicted for it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from frenzy.core.errors import ReasonCode
from frenzy.core.hardware import DeviceKind
from frenzy.core.job import LoraSpec, Precision, TrainingSpec
from frenzy.core.launchable import LaunchChoice, launch_refusal
from frenzy.core.model_parameters import ModelShape

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
GPU = LaunchChoice(kind=DeviceKind.CUDA, zero_stage=2)
VIRTUAL = replace(GPU, kind=DeviceKind.VIRTUAL)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@pytest.mark.parametrize("kind", DeviceKind)
def test_the_default_training_runs_on_every_kind_and_stage(kind: DeviceKind, zero_stage: int) -> None:
    assert launch_refusal(TRAINING, SHAPE, LaunchChoice(kind=kind, zero_stage=zero_stage)) is None


@pytest.mark.parametrize(
    ("training", "shape", "choice", "words"),
    [
        (TRAINING, replace(SHAPE, family="bert"), GPU, "bert"),
        (replace(TRAINING, precision=Precision.FP16), SHAPE, VIRTUAL, "fp16"),
        (replace(TRAINING, attention="flash_attention_2"), SHAPE, VIRTUAL, "no kernels for a CPU"),
        (replace(TRAINING, attention="flash_attention_2"), SHAPE, GPU, "not validated on a GPU"),
        (TRAINING, SHAPE, replace(VIRTUAL, offload_optimizer=True), "memory is host memory"),
        (TRAINING, replace(SHAPE, autotp=False), replace(GPU, tp=2), "AutoTP does not split llama"),
        (TRAINING, SHAPE, replace(GPU, tp=4), r"key/value heads \(2\) are not a multiple"),
        (replace(TRAINING, lora=LoraSpec()), SHAPE, replace(GPU, tp=2), "Adapters are not split"),
    ],
    ids=str,
)
def test_what_no_test_has_trained_is_refused_with_its_reason(
    training: TrainingSpec, shape: ModelShape, choice: LaunchChoice, words: str
) -> None:
    refusal = launch_refusal(training, shape, choice)
    assert refusal is not None
    assert refusal.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE
    assert re.search(words, refusal.detail)
