"""Activations of one micro-batch of each plan, from the family's traced coefficients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, Attention, Loss, TokenBytes
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.document_masks import DocumentMasks
from frenzy.core.memory.loss_chunks import loss_chunk_tokens
from frenzy.core.memory.model_inputs import Array, PlanGrid, Workload
from frenzy.core.memory.script_heads import tile_bytes, with_head
from frenzy.core.memory.stage3_inputs import under_stage3
from frenzy.core.memory.whole_scores import with_whole_scores
from frenzy.core.models.weight_storage import WeightStorage

# More than any micro-batch has.
_ALL_TOKENS: Final = 2**40


@dataclass(frozen=True)
class Activations:
    """Bytes for one micro-batch of each plan.

    one_layer: kept by each layer. outside: by embedding, last norm and loss.
    in_loss, in_backward: the highest extra. copies: weights of all layers in another format.
    masks: what keeping documents apart adds to all of it.
    """

    one_layer: Array
    outside: Array
    in_loss: Array
    in_backward: Array
    copies: Array
    masks: DocumentMasks

    @classmethod
    def of(cls, workload: Workload, grid: PlanGrid, calibration: Calibration) -> Activations | None:
        """None when a needed set of coefficients is missing."""
        parts = []
        for checkpointing in (False, True):
            mask = grid.checkpointing == checkpointing
            found = _coefficients(workload, calibration, checkpointing=checkpointing)
            needed = mask.any() or (grid.checkpointing.any() and workload.checkpoint_every > 1)
            if found is None and needed:
                return None
            rows = np.zeros((5, len(grid))) if found is None else _rows(workload, grid, calibration, found)
            parts.append((mask, rows))
        (is_plain, plain), (_, checkpointed) = parts
        rows = np.where(is_plain, plain, _selected(workload, plain, checkpointed))
        one_layer, outside, in_loss, in_backward, copies = rows
        return cls(one_layer, outside, in_loss, in_backward, copies, DocumentMasks.of(workload, grid))

    def at_loss_bytes(self, num_layers: int) -> Array:
        """All that is held when the loss goes backward."""
        masks = num_layers * self.masks.one_layer + self.masks.outside
        return num_layers * self.one_layer + self.outside + self.in_loss + masks


def _selected(workload: Workload, plain: Array, checkpointed: Array) -> Array:
    """Rows of plans in which one of ``checkpoint_every`` layers is checkpointed, from those of none and of all.

    The last checkpointed layer is computed again when the plain ones behind it are gone.
    """
    if workload.checkpoint_every == 1:
        return checkpointed
    share = workload.checkpointed_share
    behind = (workload.shape.num_layers - 1) % workload.checkpoint_every
    rows = np.maximum(plain, checkpointed)
    rows[0] = share * checkpointed[0] + (1.0 - share) * plain[0]
    again = checkpointed[3] - behind * plain[0]
    rows[3] = np.maximum(plain[3], again) if behind else again
    return rows


def _coefficients(
    workload: Workload, calibration: Calibration, *, checkpointing: bool
) -> ActivationCoefficients | None:
    """Where no adapters were traced, what training all weights keeps: inputs of every linear map."""
    setting = workload.activation_setting(checkpointing=checkpointing)
    found = calibration.activation(workload.shape, setting)
    if found is None and setting.adapters is not None:
        found = calibration.activation(workload.shape, replace(setting, adapters=None))
    if found is not None and workload.whole_scores and found.attention is not Attention.EAGER:
        found = with_whole_scores(found, workload.shape)
    return None if found is None else with_head(found, workload)


def _rows(workload: Workload, grid: PlanGrid, calibration: Calibration, coefficients: ActivationCoefficients) -> Array:
    """``_activation_rows``, with what stage 3 keeps beside frozen weights in its plans."""
    rows = _activation_rows(workload, grid, coefficients)
    stage3 = grid.zero_stage == 3
    if workload.trained.is_everything or not stage3.any():
        return rows
    quantised = workload.storage is not WeightStorage.PLAIN
    more = under_stage3(coefficients, workload.shape, calibration, quantised=quantised)
    return np.where(stage3, _activation_rows(workload, grid, more), rows)


def _activation_rows(workload: Workload, grid: PlanGrid, coefficients: ActivationCoefficients) -> Array:
    """(one layer, outside, in the loss, in the backward pass, weight copies) of every plan."""
    shape = workload.shape
    head = shape.vocab_size * shape.hidden_size
    copied = head if shape.has_output_matrix and not workload.task.has_tiles else 0
    head_gradient = coefficients.head_copies * head if workload.trained.is_everything else 0.0
    linear = grid.by_degree(lambda tp: sum(each.elements_per_rank(tp) for each in shape.layer if each.is_linear))
    return np.stack(
        [
            _highest([coefficients.layer], workload, grid),
            _highest([coefficients.outside], workload, grid),
            _in_loss(coefficients, workload, grid, head_gradient),
            _highest(coefficients.in_backward, workload, grid),
            coefficients.weight_copies * (linear * shape.num_layers + copied),
        ]
    )


def _in_loss(coefficients: ActivationCoefficients, workload: Workload, grid: PlanGrid, head_gradient: float) -> Array:
    """The highest extra of head and loss. The last operation is the head's own where a task has tiles."""
    if not workload.task.has_tiles:
        return _highest(coefficients.in_loss, workload, grid) + head_gradient
    *others, head = coefficients.in_loss
    with_tile = _highest([head], workload, grid) + head_gradient + tile_bytes(workload, grid)
    return np.maximum(_highest(others, workload, grid), with_tile) if others else with_tile


def _highest(rows: Iterable[TokenBytes], workload: Workload, grid: PlanGrid) -> Array:
    """The largest of ``rows`` for each plan, in bytes of a micro-batch.

    With a fused loss the logits of one chunk of tokens are there at a time.
    """
    tokens = grid.micro_batch * float(workload.sequence_length)
    if workload.loss is Loss.TORCH:
        return _most_per_token(rows, workload, grid) * tokens
    vocab = workload.shape.vocab_size
    chunk = np.minimum(tokens, loss_chunk_tokens(_ALL_TOKENS, vocab))
    found = [
        _most_per_token([replace(row, vocab=0.0)], workload, grid) * tokens + row.vocab * vocab * chunk for row in rows
    ]
    highest: Array = np.max(found, axis=0)
    return highest


def _most_per_token(rows: Iterable[TokenBytes], workload: Workload, grid: PlanGrid) -> Array:
    """Bytes for a token, by tensor-parallel degree."""
    rows, elements = tuple(rows), workload.trained.adapter_elements
    shape, length = workload.shape, workload.sequence_length
    return grid.by_degree(lambda tp: max(row.per_token(shape, length, tp, adapter_elements=elements) for row in rows))
