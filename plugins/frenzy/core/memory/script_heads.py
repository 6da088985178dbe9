"""What stands behind the layers where a script does not train its model's own loss.

Tiles: TRL's loss (trl/kernels/chunked_logprob.py, 1.16) computes logits tile by tile, forward and again backward, and
adds their gradients up in fp32. Classes: a linear map to a few scores (transformers' ``...ForSequenceClassification``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, TokenBytes
from frenzy.core.memory.model_inputs import Array, PlanGrid, Workload
from frenzy.core.models.parameters import ModelShape, ParameterTensor
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision

# TOKEN_CHUNK_SIZE and _CHUNKED_LOGPROB_CHUNK_SIZE. The buffer is as wide for a smaller vocabulary.
_TILE_TOKENS: Final = 4096
_TILE_WORDS: Final = 32768
# Without Triton: ``_backward_tile``'s fp32 temporaries and its mask, at their most, for each logit of a tile.
_TEMPORARY_BYTES: Final = 7 * 4 + 1
_SUM_BYTES: Final = 4.0
_NUM_CLASSES: Final = 2


def with_head(own: ActivationCoefficients, workload: Workload) -> ActivationCoefficients:
    """``own`` of a causal loss with the head of the script's task: what was kept of the logits is not there.

    Of the operations of head and loss those stay at which no logits were held.
    """
    task = workload.task
    if not (task.has_tiles or task.has_classes):
        return own
    logits, element = TokenBytes(vocab=own.outside.vocab), float(_computed_bytes(workload.precision))
    without = tuple(each.plus(logits) for each in own.in_loss if each.vocab + own.outside.vocab <= 0)
    # tiles keep the hidden states as they came, where the head's own product keeps them as it computes
    kept = 4.0 - element if task.has_tiles and workload.precision is Precision.AUTOCAST_BF16 else 0.0
    gradient = TokenBytes(hidden=_SUM_BYTES + element if task.has_tiles else element)
    return replace(
        own,
        outside=own.outside.minus(logits).plus(TokenBytes(hidden=kept)),
        in_loss=(*without, gradient),
        in_backward=tuple(each.plus(logits).minus(TokenBytes(hidden=kept)) for each in own.in_backward),
        head_copies=_SUM_BYTES if task.has_tiles else 0.0,
    )


def tile_bytes(workload: Workload, grid: PlanGrid) -> Array:
    """One tile of the loss going backward: its buffer, and what makes the gradient of it."""
    if not workload.task.has_tiles:
        return np.zeros(len(grid))
    element, hidden = _computed_bytes(workload.precision), workload.shape.hidden_size
    words = min(_TILE_WORDS, workload.shape.vocab_size)
    tokens = np.minimum(grid.micro_batch * float(workload.sequence_length), _TILE_TOKENS)
    temporary = _TEMPORARY_BYTES * words * tokens if workload.kind is DeviceKind.VIRTUAL else 0.0
    copies = element * hidden * (words + tokens) if workload.precision is Precision.AUTOCAST_BF16 else 0.0
    return np.asarray(element * _TILE_WORDS * tokens + temporary + copies, dtype=np.float64)


def as_passed(grid: PlanGrid, workload: Workload) -> PlanGrid:
    """``grid`` with the sequences that go through the model together."""
    return replace(grid, micro_batch=grid.micro_batch * workload.task.num_sequences)


def with_classes(shape: ModelShape) -> ModelShape:
    """``shape`` with a map to scores in the place of its output matrix."""
    kept = tuple(each for each in shape.head if shape.vocab_size not in (each.rows, each.columns))
    scores = ParameterTensor("score", _NUM_CLASSES, shape.hidden_size, is_linear=True)
    return replace(shape, head=(*kept, scores), tied_embeddings=False, has_output_matrix=False)


def _computed_bytes(precision: Precision) -> int:
    return 4 if precision is Precision.FP32 else 2
