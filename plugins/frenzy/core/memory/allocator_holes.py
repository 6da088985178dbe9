"""What PyTorch's allocator loses in its default settings.

A block of which a smaller tensor took a piece is lost for the largest tensors of the next step, which take new ones.
When the card is full the allocator gives back what is whole; what is not stays lost. How much that is was played with
the tensors of traced steps (``python -m tools.accuracy.holes``): where lengths vary, up to 1.2 of the largest tensor
if attention holds no scores; up to 2.3 if it does, be lengths equal or not: a step has scores and logits in turn, and
neither's blocks serve the other. A step that holds neither loses up to 4.4 of the widest tensor between two maps of a
layer. Segments that grow (``expandable_segments``) leave no holes. Nothing is counted for equal lengths without scores.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frenzy.core.memory.activation_coefficients import Attention, Loss
from frenzy.core.memory.model_inputs import Array, PlanGrid, Workload
from frenzy.core.models.parameters import ModelShape

# Logits and scores are largest in fp32, whatever the model computes in; what is between two maps is in 16 bits.
_FP32_BYTES: Final = 4
_HALF_BYTES: Final = 2
# Of the largest tensor: the next half above what plays lost.
_LOST: Final = 1.5
_LOST_BESIDE_SCORES: Final = 2.5
_LOST_WITHOUT_BOTH: Final = 4.5


def leaves_holes(*, segments_grow: bool, lengths_vary: bool, has_scores: bool) -> bool:
    """Whether a run may lose more than the margin has for fragments."""
    return not segments_grow and (lengths_vary or has_scores)


def hole_bytes(workload: Workload, grid: PlanGrid) -> Array:
    """What may be lost in each plan."""
    eager = workload.attention is Attention.EAGER or workload.whole_scores
    if not leaves_holes(segments_grow=workload.segments_grow, lengths_vary=workload.lengths_vary, has_scores=eager):
        return np.zeros(len(grid))
    task = workload.task
    has_logits = workload.loss is Loss.TORCH and not (task.has_tiles or task.has_classes)
    lost = lost_bytes(workload.shape, workload.sequence_length, has_logits=has_logits, has_scores=eager)
    return np.asarray(lost * grid.micro_batch * task.num_sequences / grid.tp, dtype=np.float64)


def lost_bytes(shape: ModelShape, length: int, *, has_logits: bool, has_scores: bool) -> int:
    """What may be lost for each sequence of a micro-batch."""
    if not (has_logits or has_scores):
        return round(_LOST_WITHOUT_BOTH * _HALF_BYTES * shape.intermediate_size * length)
    elements = largest_elements(shape, length, has_logits=has_logits, has_scores=has_scores)
    return round((_LOST_BESIDE_SCORES if has_scores else _LOST) * _FP32_BYTES * elements)


def largest_elements(shape: ModelShape, length: int, *, has_logits: bool, has_scores: bool) -> int:
    """Elements of the largest tensor that one sequence makes: its logits, or the scores of a layer's heads."""
    logits = shape.vocab_size * length if has_logits else 0
    return max(logits, shape.num_heads * length**2 if has_scores else 0)
