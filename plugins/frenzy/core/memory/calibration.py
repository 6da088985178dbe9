"""Measured coefficients of the closed form; values that a command generates and core receives.

``tools.calibration`` traces each model family and measures what lies outside tensors; the
result is a JSON file with the library versions it holds for. Nothing here is typed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from frenzy.core.memory.activation_coefficients import (
    ActivationCoefficients,
    ActivationSetting,
    AdapterSetting,
    Attention,
    Loss,
    TokenBytes,
    find_coefficients,
)
from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.hardware import DeviceKind

__all__ = [
    "ActivationCoefficients",
    "ActivationSetting",
    "AdapterSetting",
    "Attention",
    "Calibration",
    "Loss",
    "OutsideBytes",
    "TokenBytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideBytes:
    """Memory outside tensors, above the baseline: communication scratch, the objects of the engine
    and of the autograd graph, page rounding. They grow with the number of parameter tensors.
    """

    kind: DeviceKind
    zero_stage: int
    num_bytes: int
    bytes_per_tensor: int = 0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All measured constants of the memory and time models.

    tensor_parallel_bytes: on a virtual GPU, the threads of the further process groups.
    headroom_share: of the predicted peak, added one-sidedly to make the requirement.
    headroom_bytes: least amount so added. micro_batch_overhead_s: time of a micro-batch beyond
    its FLOPs; collective_latency_s: of one meeting of the ranks. cuda_utilisation,
    virtual_utilisation: reached share of the peak rate. internode_bytes_per_s: between nodes.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    measured_on: str = ""
    activations: tuple[ActivationCoefficients, ...] = ()
    outside: tuple[OutsideBytes, ...] = ()
    tensor_parallel_bytes: int = 0
    headroom_share: float = 0.07
    headroom_bytes: int = 8 * 1024**2
    micro_batch_overhead_s: float = 0.004
    collective_latency_s: float = 5e-5
    cuda_utilisation: float = 0.4
    virtual_utilisation: float = 1.0
    internode_bytes_per_s: float = 1.25e9

    @property
    def joins_experts(self) -> bool:
        """Whether its transformers keeps all experts of a layer in one tensor, as it does from release 5 on."""
        return not self.versions.get("transformers", "").startswith("4.")

    def of_family(self, family: str) -> tuple[ActivationCoefficients, ...]:
        """All coefficients of ``family``."""
        return self._by_family.get(family, ())

    @cached_property
    def _by_family(self) -> Mapping[str, tuple[ActivationCoefficients, ...]]:
        families = dict.fromkeys(each.family for each in self.activations)
        return {name: tuple(each for each in self.activations if each.family == name) for name in families}

    def activation(self, shape: ModelShape, setting: ActivationSetting) -> ActivationCoefficients | None:
        """The coefficients for ``shape`` in ``setting``; None when nothing was traced for it."""
        hidden_dropout = max(shape.embedding_dropout, shape.residual_dropout) > 0
        key = (shape.family, shape.attention_dropout > 0, hidden_dropout, setting)
        if key not in self._answers:
            self._answers[key] = find_coefficients(self.of_family(shape.family), shape, setting)
        return self._answers[key]

    @cached_property
    def _answers(self) -> dict[tuple[str, bool, bool, ActivationSetting], ActivationCoefficients | None]:
        """What was looked up before: a plan search asks the same few things again and again."""
        return {}

    def outside_bytes(self, kind: DeviceKind, zero_stage: int, *, num_tensors: int, tp: int) -> int:
        """Bytes outside tensors for a model of so many parameter tensors; 0 where nothing was measured."""
        found = [each for each in self.outside if each.kind is kind and each.zero_stage == zero_stage]
        alone = max((each.num_bytes + each.bytes_per_tensor * num_tensors for each in found), default=0)
        return alone + (self.tensor_parallel_bytes if tp > 1 and kind is DeviceKind.VIRTUAL else 0)

    def utilisation(self, kind: DeviceKind) -> float:
        return self.virtual_utilisation if kind is DeviceKind.VIRTUAL else self.cuda_utilisation
