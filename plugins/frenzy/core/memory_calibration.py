"""Measured coefficients of the closed form; values that a command generates and core receives.

``frenzy.trainer.calibrate`` traces each model family and measures what lies outside tensors; the
result is a JSON file with the library versions it holds for. Nothing here is typed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from frenzy.core.hardware import DeviceKind
from frenzy.core.job import Precision
from frenzy.core.model_parameters import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes for each token of a micro-batch, as a linear combination of the model's widths.

    hidden, query, key_value, intermediate, vocab: bytes for each element of that width.
    heads, key_value_heads: bytes for each of them (log-sum-exp, norms of heads); scores: for each
    head and each position attended to (attention that materialises its score matrix).
    constant: bytes independent of any width.
    """

    hidden: float = 0.0
    query: float = 0.0
    key_value: float = 0.0
    intermediate: float = 0.0
    heads: float = 0.0
    key_value_heads: float = 0.0
    scores: float = 0.0
    vocab: float = 0.0
    constant: float = 0.0

    def per_token(self, shape: ModelShape, sequence_length: int, tp: int = 1) -> float:
        """Bytes for one token on one of ``tp`` tensor-parallel ranks."""
        split = (
            self.query * shape.query_width
            + self.key_value * shape.key_value_width
            + self.intermediate * shape.intermediate_size
            + self.heads * shape.num_heads
            + self.key_value_heads * shape.num_key_value_heads
            + self.scores * shape.num_heads * sequence_length
        )
        return self.hidden * shape.hidden_size + self.vocab * shape.vocab_size + self.constant + split / tp


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCoefficients:
    """What one family keeps for the backward pass, and what each part of the step adds to it.

    layer: kept by each layer. outside: kept outside the layers, the loss included. in_loss,
    in_backward: what is held above that at each operation of the head and the loss, and of the
    last layer's backward pass; the highest counts. weight_copies: bytes for each element of a
    layer's (and the head's) linear maps, kept in another format (autocast).
    """

    family: str
    precision: Precision
    checkpointing: bool
    attention_dropout: bool
    hidden_dropout: bool
    layer: TokenBytes
    outside: TokenBytes
    in_loss: tuple[TokenBytes, ...]
    in_backward: tuple[TokenBytes, ...]
    weight_copies: float = 0.0

    @property
    def key(self) -> tuple[str, Precision, bool, bool, bool]:
        return (self.family, self.precision, self.checkpointing, self.attention_dropout, self.hidden_dropout)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideBytes:
    """Memory outside tensors, above the baseline: communication scratch, the objects of the engine
    and of the autograd graph, page rounding. They grow with the number of parameter tensors.
    """

    kind: DeviceKind
    zero_stage: int
    num_bytes: int
    bytes_per_tensor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
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
    headroom_share: float = 0.05
    headroom_bytes: int = 8 * 1024**2
    micro_batch_overhead_s: float = 0.004
    collective_latency_s: float = 5e-5
    cuda_utilisation: float = 0.4
    virtual_utilisation: float = 1.0
    internode_bytes_per_s: float = 1.25e9

    def activation(
        self, shape: ModelShape, precision: Precision, *, checkpointing: bool
    ) -> ActivationCoefficients | None:
        """The coefficients for ``shape``; fp16 shares those of bf16, which has the same width."""
        wanted = Precision.BF16 if precision is Precision.FP16 else precision
        hidden_dropout = max(shape.embedding_dropout, shape.residual_dropout) > 0
        key = (shape.family, wanted, checkpointing, shape.attention_dropout > 0, hidden_dropout)
        return next((each for each in self.activations if each.key == key), None)

    def outside_bytes(self, kind: DeviceKind, zero_stage: int, *, num_tensors: int, tp: int) -> int:
        """Bytes outside tensors for a model of so many parameter tensors; 0 where nothing was measured."""
        found = [each for each in self.outside if each.kind is kind and each.zero_stage == zero_stage]
        alone = max((each.num_bytes + each.bytes_per_tensor * num_tensors for each in found), default=0)
        return alone + (self.tensor_parallel_bytes if tp > 1 and kind is DeviceKind.VIRTUAL else 0)

    def utilisation(self, kind: DeviceKind) -> float:
        return self.virtual_utilisation if kind is DeviceKind.VIRTUAL else self.cuda_utilisation
