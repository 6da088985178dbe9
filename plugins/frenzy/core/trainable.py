"""Which parameters are trained: all of them, or low-rank adapters on some linear maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frenzy.core.job import LoraSpec
from frenzy.core.model_parameters import ModelShape, ParameterTensor

# The library's default targets (peft's table of target modules by family).
_DEFAULT_TARGETS: Final = {
    "gpt2": ("attn.c_attn",),
    "gpt_neox": ("attention.query_key_value",),
    "phi": ("self_attn.q_proj", "self_attn.v_proj", "mlp.fc1", "mlp.fc2"),
}
_USUAL_TARGETS: Final = ("self_attn.q_proj", "self_attn.v_proj")


@dataclass(frozen=True)
class TrainedPart:
    """The trained tensors in the optimizer's order. adapters: None when all weights are trained."""

    embeddings: tuple[ParameterTensor, ...]
    layer: tuple[ParameterTensor, ...]
    head: tuple[ParameterTensor, ...]
    is_everything: bool

    def num_elements(self, num_layers: int) -> int:
        """Trained parameters of the whole model, undivided."""
        outer = sum(each.num_elements for each in (*self.embeddings, *self.head))
        return outer + num_layers * sum(each.num_elements for each in self.layer)


def trained_part(shape: ModelShape, lora: LoraSpec | None) -> TrainedPart:
    """All parameters of ``shape``, or the adapters that ``lora`` adds to each layer."""
    if lora is None:
        return TrainedPart(shape.embeddings, shape.layer, shape.head, is_everything=True)
    targets = lora.target_modules or _DEFAULT_TARGETS.get(shape.family, _USUAL_TARGETS)
    adapted = [each for each in shape.layer if each.is_linear and _is_target(each.name, targets)]
    adapters = [part for each in adapted for part in _adapter(each, lora.rank)]
    return TrainedPart((), tuple(adapters), (), is_everything=False)


def _is_target(name: str, targets: tuple[str, ...]) -> bool:
    return any(name == target or name.rsplit(".", 1)[-1] == target for target in targets)


def _adapter(linear: ParameterTensor, rank: int) -> tuple[ParameterTensor, ParameterTensor]:
    return (
        ParameterTensor(f"{linear.name}.lora_A", rank, linear.columns),
        ParameterTensor(f"{linear.name}.lora_B", linear.rows, rank),
    )
