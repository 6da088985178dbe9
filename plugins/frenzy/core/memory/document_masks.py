"""What keeping packed documents apart adds to the activations: block masks, and heads that share keys no longer.

torch's own attention (sdpa) takes no mask for a causal sequence; documents need one. transformers makes it once for
each micro-batch, a byte for each pair of positions. The kernel adds a mask, so each layer converts it to the format it
computes in, and keeps that until it has gone backward; key/value heads that several query heads share are repeated for
it (``use_gqa_in_sdpa`` in transformers' sdpa_attention.py). Eager attention has a mask in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frenzy.core.memory.activation_coefficients import Attention
from frenzy.core.memory.model_inputs import Array, PlanGrid, Workload
from frenzy.core.values.job import Precision

# Position ids and labels of their own, int64 each.
_INPUT_BYTES = 16.0


@dataclass(frozen=True)
class DocumentMasks:
    """Bytes for one micro-batch of each plan.

    one_layer: kept by each layer. outside: kept once. in_backward: while a checkpointed layer goes backward.
    """

    one_layer: Array
    outside: Array
    in_backward: Array

    @classmethod
    def of(cls, workload: Workload, grid: PlanGrid) -> DocumentMasks:
        """All zero for a workload whose documents are not kept apart."""
        nothing = np.zeros(len(grid))
        if not workload.document_masks:
            return cls(nothing, nothing, nothing)
        tokens = grid.micro_batch * float(workload.sequence_length)
        inputs: Array = np.multiply(_INPUT_BYTES, tokens, dtype=np.float64)
        if workload.attention is not Attention.SDPA:
            return cls(nothing, inputs, nothing)
        pairs = tokens * workload.sequence_length
        computed = 4.0 if workload.precision is Precision.FP32 else 2.0
        layer = computed * (pairs + tokens * _repeated_width(workload) / grid.tp)
        plain = np.where(grid.checkpointing, 1.0 - workload.checkpointed_share, 1.0)
        return cls(plain * layer, inputs + pairs, np.where(grid.checkpointing, layer, 0.0))


def _repeated_width(workload: Workload) -> int:
    """Elements of keys and values for a token, beyond those that are there without the mask."""
    return 2 * (workload.shape.query_width - workload.shape.key_value_width)
