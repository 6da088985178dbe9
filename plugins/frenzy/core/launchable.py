"""Which combinations of a job's and a plan's choices the trainer can run.

A combination counts as launchable when a test has trained it, on a GPU or, where the code path is
the same, on the CPU. Everything else may be predicted, is never chosen, and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.hardware import DeviceKind
from frenzy.core.job import Precision, TrainingSpec
from frenzy.core.model_parameters import ModelShape

# Families of which a test trains a small model.
TRAINED_FAMILIES: Final = ("gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma", "phi")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChoice:
    """What a plan adds to a job, as far as it decides whether the trainer can run it."""

    kind: DeviceKind
    zero_stage: int
    tp: int = 1
    offload_optimizer: bool = False


@dataclass(frozen=True, slots=True)
class _Question:
    training: TrainingSpec
    shape: ModelShape
    choice: LaunchChoice


def launch_refusal(training: TrainingSpec, shape: ModelShape, choice: LaunchChoice) -> Reason | None:
    """Why the trainer cannot run ``choice`` of this job; None when it can.

    The reason's code is PREDICTED_NOT_LAUNCHABLE; its remedy is the smallest change of the job, where
    there is one.
    """
    question = _Question(training, shape, choice)
    return next((refusal for rule in _RULES if (refusal := rule(question)) is not None), None)


def _refused(detail: str, remedy: str | None = None) -> Reason:
    return Reason(code=ReasonCode.PREDICTED_NOT_LAUNCHABLE, detail=detail, remedy=remedy)


def _family(question: _Question) -> Reason | None:
    family = question.shape.family
    if family in TRAINED_FAMILIES:
        return None
    return _refused(
        f"The trainer trains causal language models of the families {', '.join(TRAINED_FAMILIES)}; {family} is none.",
        "Use one of these families.",
    )


def _precision(question: _Question) -> Reason | None:
    if question.choice.kind is DeviceKind.VIRTUAL and question.training.precision is Precision.FP16:
        return _refused("DeepSpeed refuses fp16 on a CPU.", "Set training.precision to bf16.")
    return None


def _attention(question: _Question) -> Reason | None:
    if question.training.attention != "flash_attention_2":
        return None
    if question.choice.kind is DeviceKind.VIRTUAL:
        return _refused("flash_attention_2 has no kernels for a CPU.", "Set training.attention to sdpa.")
    return _refused("flash_attention_2 was not validated on a GPU.", "Set training.attention to sdpa.")


def _tensor_parallel(question: _Question) -> Reason | None:
    tp, shape, training = question.choice.tp, question.shape, question.training
    if tp == 1:
        return None
    if not shape.autotp:
        return _refused(f"DeepSpeed's AutoTP does not split {shape.family}.")
    if shape.num_heads % tp or shape.num_key_value_heads % tp:
        return _refused(
            f"The key/value heads ({shape.num_key_value_heads}) are not a multiple of tensor parallel {tp}."
        )
    if training.lora is not None:
        return _refused("Adapters are not split by AutoTP.", "Leave out training.lora.")
    return None


def _offload(question: _Question) -> Reason | None:
    if not question.choice.offload_optimizer:
        return None
    if question.choice.kind is DeviceKind.VIRTUAL:
        return _refused("A virtual GPU's memory is host memory: moving the optimizer to the host saves nothing.")
    return None


_RULES: Final[tuple[Callable[[_Question], Reason | None], ...]] = (
    _family,
    _precision,
    _attention,
    _tensor_parallel,
    _offload,
)
