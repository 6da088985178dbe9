"""Which parameters are trained: all of them, or low-rank adapters on some linear maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frenzy.core.models.parameters import ModelShape, ParameterTensor
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job import LoraSpec

# What is adapted when a job names no targets: peft's table of target modules by family, and the
# attention's projections for families it does not list.
_DEFAULT_TARGETS: Final = {
    "gpt2": ("attn.c_attn",),
    "gpt_bigcode": ("attn.c_attn",),
    "gpt_neox": ("attention.query_key_value",),
    "mpt": ("attn.Wqkv",),
    "phi": ("self_attn.q_proj", "self_attn.v_proj", "mlp.fc1", "mlp.fc2"),
    "phi3": ("self_attn.qkv_proj",),
    "bert": ("attention.self.query", "attention.self.value"),
    "roberta": ("attention.self.query", "attention.self.value"),
}
_USUAL_TARGETS: Final = ("self_attn.q_proj", "self_attn.v_proj")


@dataclass(frozen=True)
class TrainedPart:
    """The trained tensors in the optimizer's order. adapters: None when all weights are trained."""

    embeddings: tuple[ParameterTensor, ...]
    layer: tuple[ParameterTensor, ...]
    head: tuple[ParameterTensor, ...]
    is_everything: bool

    @property
    def adapted(self) -> tuple[str, ...]:
        """Last parts of the names of the linear maps that have adapters, sorted; none when all weights are trained."""
        if self.is_everything:
            return ()
        return tuple(sorted({each.name.rsplit(".", 1)[0].rsplit(".", 1)[-1] for each in self.layer}))

    @property
    def adapter_elements(self) -> int:
        """The adapters' rank times the adapted linear maps of a layer."""
        return 0 if self.is_everything else sum(each.rows for each in self.layer if each.name.endswith(".lora_A"))

    def num_elements(self, num_layers: int) -> int:
        """Trained parameters of the whole model, undivided."""
        outer = sum(each.num_elements for each in (*self.embeddings, *self.head))
        return outer + num_layers * sum(each.num_elements for each in self.layer)


def trained_part(shape: ModelShape, lora: LoraSpec | None) -> TrainedPart:
    """All parameters of ``shape``, or the adapters that ``lora`` adds to each layer, if any layer is known."""
    if lora is None or not shape.layer:
        return TrainedPart(shape.embeddings, shape.layer, shape.head, is_everything=True)
    targets = adapter_targets(shape.family, lora)
    adapted = [each for each in shape.layer if each.is_linear and _is_target(each.name, targets)]
    if not adapted:
        raise _nothing_adapted(shape, targets)
    adapters = [part for each in adapted for part in _adapter(each, lora.rank)]
    return TrainedPart((), tuple(adapters), (), is_everything=False)


def _nothing_adapted(shape: ModelShape, targets: tuple[str, ...]) -> PermanentError:
    known = ", ".join(dict.fromkeys(each.name.rsplit(".", 1)[-1] for each in shape.layer if each.is_linear))
    return PermanentError(
        Reason(
            code=ReasonCode.BAD_CONFIG_OR_DATA,
            detail=f"training.lora.target_modules: {', '.join(targets)} is no linear map of {shape.family}'s layers.",
            remedy=f"Choose among {known}.",
        )
    )


def adapter_targets(family: str, lora: LoraSpec) -> tuple[str, ...]:
    """Ends of the names of the linear maps that get adapters."""
    return lora.target_modules or _DEFAULT_TARGETS.get(family, _USUAL_TARGETS)


def _is_target(name: str, targets: tuple[str, ...]) -> bool:
    return any(f".{name}".endswith(f".{target}") for target in targets)


def _adapter(linear: ParameterTensor, rank: int) -> tuple[ParameterTensor, ParameterTensor]:
    return (
        ParameterTensor(f"{linear.name}.lora_A", rank, linear.columns),
        ParameterTensor(f"{linear.name}.lora_B", linear.rows, rank),
    )
