"""What PyTorch's allocator loses in its default settings where sequences are of another length in each step.

A block of which a smaller tensor took a piece is lost for the largest tensors of the next step, which take new ones.
When the card is full the allocator gives back what is whole; what is not stays lost. Three of the largest tensors are
there at once: logits in fp32, their log-probabilities and the gradient, or scores likewise. At worst the blocks of all
three are lost. In traced steps that were played it was up to 2.1 of them (``python -m tools.accuracy.holes``). Segments
that grow (``expandable_segments``) leave no holes, nor do equal lengths.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frenzy.core.memory.activation_coefficients import Attention, Loss
from frenzy.core.memory.model_inputs import Array, PlanGrid, Workload
from frenzy.core.models.parameters import ModelShape

# Logits and scores are largest in fp32, whatever the model computes in.
_FP32_BYTES: Final = 4
_LOST_TENSORS: Final = 3


def hole_bytes(workload: Workload, grid: PlanGrid) -> Array:
    """What may be lost in each plan; 0 where lengths are equal or segments grow."""
    if not workload.leaves_holes:
        return np.zeros(len(grid))
    task = workload.task
    has_logits = workload.loss is Loss.TORCH and not (task.has_tiles or task.has_classes)
    sequences = grid.micro_batch * task.num_sequences
    length, eager = workload.sequence_length, workload.attention is Attention.EAGER
    elements = largest_elements(workload.shape, length, has_logits=has_logits, has_scores=eager)
    return np.asarray(lost_bytes(elements) * sequences / grid.tp, dtype=np.float64)


def largest_elements(shape: ModelShape, length: int, *, has_logits: bool, has_scores: bool) -> int:
    """Elements of the largest tensor that one sequence makes: its logits, or the scores of a layer's heads."""
    logits = shape.vocab_size * length if has_logits else 0
    return max(logits, shape.num_heads * length**2 if has_scores else 0)


def lost_bytes(elements: int) -> int:
    """What may be lost where the largest tensor has so many elements."""
    return _LOST_TENSORS * _FP32_BYTES * elements
