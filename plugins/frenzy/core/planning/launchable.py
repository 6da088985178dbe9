"""Which combinations of a job's and a plan's choices the trainer can run.

A combination counts as launchable when a test has trained it (``tests/trainer``): on the CPU, where
the trainer runs the same code as on a GPU. What has no kernels there is not launchable until it was
trained on a GPU; attention and kernels that the user installed are the exception. A family that the memory
model has no coefficients for runs as far as its trace did: with the options that every causal model of the
library has. Everything else may be predicted, is never chosen, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from frenzy.core.memory.model_trace import ModelTrace
from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision, TrainingJob, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedFamily:
    """What the tests train of a family.

    sdpa: with torch's fused attention; without it only eager attention runs. fused_loss: with the
    loss that holds no logits. tensor_parallel: split by AutoTP, and saved. nf4: with 4-bit weights.
    document_masks: with documents of a packed sequence kept apart by their position ids.
    """

    sdpa: bool = True
    fused_loss: bool = True
    tensor_parallel: bool = True
    nf4: bool = True
    document_masks: bool = True


_WHOLE: Final = TrainedFamily(tensor_parallel=False)
TRAINED_FAMILIES: Final[Mapping[str, TrainedFamily]] = {
    "gpt2": _WHOLE,
    "gpt_bigcode": _WHOLE,
    "gpt_neox": TrainedFamily(),
    "opt": TrainedFamily(document_masks=False),
    "mpt": TrainedFamily(sdpa=False, tensor_parallel=False, document_masks=False),
    "llama": TrainedFamily(),
    "mistral": TrainedFamily(),
    "granite": TrainedFamily(),
    "qwen2": TrainedFamily(),
    "qwen3": TrainedFamily(),
    "gemma": TrainedFamily(),
    "gemma2": TrainedFamily(sdpa=False, fused_loss=False),
    "gemma3_text": TrainedFamily(),
    "phi": TrainedFamily(),
    "phi3": _WHOLE,
    "mixtral": _WHOLE,
    "qwen3_moe": _WHOLE,
}


# Compute capabilities, first and first beyond. FlashAttention 2: Ampere and newer; 3: Hopper (their READMEs).
_FLASH_CAPABILITIES: Final = {"flash_attention_2": (8.0, math.inf), "flash_attention_3": (9.0, 10.0)}

# Families of which liger-kernel 0.8 replaces norms, RoPE and SwiGLU, all three, in a model that is already made.
LIGER_FAMILIES: Final = ("granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
# Families whose layers a test has compiled.
COMPILED_FAMILIES: Final = ("gpt2", "llama")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChoice:
    """What a plan adds to a job, as far as it decides whether the trainer can run it.

    compute_capability: of the card (``"9.0"``), None where it is not known.
    """

    kind: DeviceKind
    zero_stage: int
    tp: int = 1
    offload_optimizer: bool = False
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    job: TrainingJob
    shape: ModelShape
    choice: LaunchChoice
    family: TrainedFamily

    @property
    def training(self) -> TrainingSpec:
        return self.job.training


def launch_refusal(
    job: TrainingJob, shape: ModelShape, choice: LaunchChoice, trace: ModelTrace | None = None
) -> Reason | None:
    """Why the trainer cannot run ``choice`` of ``job``; None when it can.

    The reason's code is PREDICTED_NOT_LAUNCHABLE; its remedy is the smallest change of the job, where
    there is one. trace: of a model whose family is not in the table.
    """
    family = TRAINED_FAMILIES.get(shape.family) or _as_traced(trace)
    if shape.is_encoder or family is None:
        return _family_refusal(shape)
    question = _Question(job, shape, choice, family)
    return next((refusal for rule in _RULES if (refusal := rule(question)) is not None), None)


def _as_traced(trace: ModelTrace | None) -> TrainedFamily | None:
    """What the trainer runs of a model whose own class ran in a trace."""
    if trace is None or not trace.activations:
        return None
    return TrainedFamily(
        sdpa=trace.has_sdpa, fused_loss=trace.fuses_loss, tensor_parallel=False, nf4=False, document_masks=False
    )


def refusal_whatever_is_traced(job: TrainingJob) -> Reason | None:
    """Why the trainer runs no plan of ``job`` where a trace stands in for its family's coefficients; None if it may."""
    lora = job.training.lora
    quantizes = job.workload is None and lora is not None and lora.quantization != "none"
    return _not_quantised("a model that has to be traced") if quantizes else None


def _not_quantised(model: str) -> Reason:
    return _refused(f"Weights of {model} are not quantised.", "Set training.lora.quantization to none.")


def _refused(detail: str, remedy: str | None = None) -> Reason:
    return Reason(code=ReasonCode.PREDICTED_NOT_LAUNCHABLE, detail=detail, remedy=remedy)


def _family_refusal(shape: ModelShape) -> Reason:
    if shape.is_encoder:
        return _refused(
            f"The trainer trains models that continue a text; {shape.family} fills in masked tokens.",
            "Bring a script that trains it: for classes of texts with workload.task: classification (docs/recipes.md).",
        )
    return _refused(
        f"The trainer trains models that continue a text; {shape.family} was not trained by a test.",
        f"Use one of the families {', '.join(TRAINED_FAMILIES)}.",
    )


def _precision(question: _Question) -> Reason | None:
    if question.choice.kind is DeviceKind.VIRTUAL and question.training.precision is Precision.FP16:
        return _refused("DeepSpeed refuses fp16 on a CPU.", "Set training.precision to bf16.")
    return None


def _attention(question: _Question) -> Reason | None:
    if question.training.attention != "eager" and not question.family.sdpa:
        detail = f"{question.shape.family} has no attention of torch's own (sdpa), nor was another one validated."
        return _refused(detail, "Set training.attention to eager.")
    return _flash_attention(question.training.attention, question.choice)


def _flash_attention(attention: str, choice: LaunchChoice) -> Reason | None:
    """What its own package needs. Whether that is installed, the trainer says before it loads anything."""
    if attention not in _FLASH_CAPABILITIES:
        return None
    least, below = _FLASH_CAPABILITIES[attention]
    if choice.kind is DeviceKind.VIRTUAL:
        return _refused(f"{attention} has no kernels for a CPU.", "Set training.attention to sdpa.")
    if choice.compute_capability is not None and not least <= float(choice.compute_capability) < below:
        cards = f"from {least:g} to below {below:g}" if below < math.inf else f"from {least:g}"
        detail = f"{attention} has kernels for compute capability {cards}; the card has {choice.compute_capability}."
        return _refused(detail, "Set training.attention to sdpa.")
    return None


def _loss(question: _Question) -> Reason | None:
    if question.training.loss != "fused":
        return None
    if not question.family.fused_loss:
        return _refused(f"{question.shape.family} changes its logits before the loss.", "Set training.loss to torch.")
    if question.choice.tp > 1:
        detail = "Tensor parallelism splits the output head, which the fused loss applies whole."
        return _refused(detail, "Set training.loss to torch.")
    return None


def _kernels(question: _Question) -> Reason | None:
    """What liger-kernel needs. Whether it is installed, the trainer says before it loads anything."""
    if question.training.kernels != "liger":
        return None
    remedy = "Set training.kernels to torch."
    if question.shape.family not in LIGER_FAMILIES:
        families = ", ".join(LIGER_FAMILIES)
        return _refused(f"liger-kernel is offered for {families}; the model is {question.shape.family}.", remedy)
    if question.choice.kind is DeviceKind.VIRTUAL:
        return _refused("liger-kernel has no kernels for a CPU.", remedy)
    if question.choice.tp > 1:
        return _refused("liger-kernel's layers were not validated under tensor parallelism.", remedy)
    return None


def _compile(question: _Question) -> Reason | None:
    """What was compiled in tests: layers of ranks that hold their weights whole."""
    if not question.training.compile:
        return None
    if question.shape.family not in COMPILED_FAMILIES:
        families = " and ".join(COMPILED_FAMILIES)
        detail = f"Layers of {families} were compiled in tests; the model is {question.shape.family}."
        return _refused(detail, "Set training.compile to false.")
    if question.choice.kind is DeviceKind.VIRTUAL:
        detail = "A virtual GPU's memory is the process's, of which the compiler takes more than a small model."
        return _refused(detail, "Set training.compile to false.")
    if question.choice.zero_stage == 3:
        return _refused("Compiled layers were not validated under ZeRO stage 3, which gathers weights inside them.")
    if question.choice.tp > 1:
        return _refused("Compiled layers were not validated under tensor parallelism.")
    lora = question.training.lora
    if lora is not None and lora.quantization != "none":
        return _refused("Compiled layers were not validated with 4-bit weights.", "Set training.compile to false.")
    return None


def _document_masks(question: _Question) -> Reason | None:
    if not question.job.data.document_masks or question.family.document_masks:
        return None
    detail = f"{question.shape.family} is not known to tell documents apart by their position ids."
    return _refused(detail, "Set data.document_masks to false.")


def _quantization(question: _Question) -> Reason | None:
    lora = question.training.lora
    if lora is None or lora.quantization == "none":
        return None
    if not question.family.nf4:
        return _not_quantised(question.shape.family)
    if question.choice.kind is DeviceKind.CUDA and question.choice.zero_stage == 3:
        return _refused("4-bit weights under ZeRO stage 3 were not validated on a GPU.")
    return None


def _tensor_parallel(question: _Question) -> Reason | None:
    tp, shape = question.choice.tp, question.shape
    if tp == 1:
        return None
    if not (shape.autotp and question.family.tensor_parallel):
        return _refused(f"DeepSpeed's AutoTP does not split {shape.family}.")
    if shape.num_heads % tp or shape.num_key_value_heads % tp:
        heads = f"{shape.num_heads} and {shape.num_key_value_heads}"
        return _refused(f"The attention and key/value heads ({heads}) are not both a multiple of {tp}.")
    if question.training.lora is not None:
        return _refused("Adapters are not split by AutoTP.", "Leave out training.lora.")
    return None


def _offload(question: _Question) -> Reason | None:
    if question.choice.offload_optimizer and question.choice.kind is DeviceKind.VIRTUAL:
        return _refused("A virtual GPU's memory is host memory: moving the optimizer to the host saves nothing.")
    return None


_RULES: Final[tuple[Callable[[_Question], Reason | None], ...]] = (
    _precision,
    _attention,
    _loss,
    _kernels,
    _compile,
    _document_masks,
    _quantization,
    _tensor_parallel,
    _offload,
)
