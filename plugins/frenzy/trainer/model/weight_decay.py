"""Which trained parameters the optimizer decays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from frenzy.core.values.job import TrainingSpec


def parameter_groups(
    trained: Iterable[tuple[str, torch.nn.Parameter]], training: TrainingSpec
) -> list[torch.nn.Parameter] | list[dict[str, Any]]:
    """``trained`` as the optimizer takes them: one list, or matrices and, without decay, what is none.

    No group is empty: ZeRO lays each out flat. The order within a group is that of the model.
    """
    named = list(trained)
    plain = [each for name, each in named if not _is_matrix(name, each)]
    if training.weight_decay == 0 or training.weight_decay_on == "all" or not plain:
        return [each for _, each in named]
    decayed = [each for name, each in named if _is_matrix(name, each)]
    groups: list[dict[str, Any]] = [{"params": plain, "weight_decay": 0.0}]
    return [{"params": decayed}, *groups] if decayed else groups


def _is_matrix(name: str, parameter: Any) -> bool:
    """Experts' biases lie beside one another in two dimensions; ZeRO-3 keeps the shape apart from the values."""
    return len(getattr(parameter, "ds_shape", parameter.shape)) > 1 and not name.endswith("bias")
