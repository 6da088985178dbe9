"""Activations of one micro-batch of each plan, from the family's traced coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frenzy.core.memory_calibration import ActivationCoefficients, ActivationSetting, Calibration
from frenzy.core.memory_workload import Array, PlanGrid, Workload


@dataclass(frozen=True)
class Activations:
    """Bytes for one micro-batch of each plan.

    one_layer: kept by each layer. outside: by embedding, last norm and loss.
    in_loss, in_backward: the highest extra. copies: weights of all layers in another format.
    """

    one_layer: Array
    outside: Array
    in_loss: Array
    in_backward: Array
    copies: Array

    @classmethod
    def of(cls, workload: Workload, grid: PlanGrid, calibration: Calibration) -> Activations | None:
        """None when a needed set of coefficients is missing."""
        parts = []
        for checkpointing in (False, True):
            mask = grid.checkpointing == checkpointing
            setting = ActivationSetting(precision=workload.precision, checkpointing=checkpointing, kind=workload.kind)
            found = calibration.activation(workload.shape, setting)
            if found is None and mask.any():
                return None
            parts.append((mask, np.zeros((5, len(grid))) if found is None else _activation_rows(workload, grid, found)))
        rows = np.where(parts[0][0], parts[0][1], parts[1][1])
        one_layer, outside, in_loss, in_backward, copies = rows
        return cls(one_layer, outside, in_loss, in_backward, copies)


def _activation_rows(workload: Workload, grid: PlanGrid, coefficients: ActivationCoefficients) -> Array:
    """(one layer, outside, in the loss, in the backward pass, weight copies) of every plan."""
    shape, length = workload.shape, workload.sequence_length
    by_tp = {}
    for tp in np.unique(grid.tp).tolist():
        linear = sum(each.elements_per_rank(tp) for each in shape.layer if each.is_linear)
        by_tp[tp] = (
            coefficients.layer.per_token(shape, length, tp),
            coefficients.outside.per_token(shape, length, tp),
            max(each.per_token(shape, length, tp) for each in coefficients.in_loss),
            max(each.per_token(shape, length, tp) for each in coefficients.in_backward),
            coefficients.weight_copies * (linear * shape.num_layers + shape.vocab_size * shape.hidden_size),
        )
    table = np.zeros((5, int(grid.tp.max(initial=0)) + 1))
    for tp, column in by_tp.items():
        table[:, tp] = column
    rows: Array = table[:, grid.tp]
    rows[:4] *= grid.micro_batch * length
    return rows
