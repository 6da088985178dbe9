"""What is decayed, and in which groups the optimizer sees it."""

from __future__ import annotations

from typing import Any

import torch

from frenzy.core.values.job import TrainingSpec
from frenzy.trainer.model.weight_decay import parameter_groups

MATRICES = TrainingSpec(weight_decay=0.1, weight_decay_on="matrices")


def parameters(*shapes: tuple[str, tuple[int, ...]]) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in shapes]


def test_all_are_one_list_unless_matrices_alone_are_asked_for() -> None:
    named = parameters(("a.weight", (2, 2)), ("a.bias", (2,)))
    for training in (TrainingSpec(weight_decay=0.1), TrainingSpec(weight_decay_on="matrices")):
        found = parameter_groups(named, training)
        assert [id(each) for each in found] == [id(each) for _, each in named]


def test_vectors_and_biases_have_a_group_without_decay() -> None:
    named = parameters(("a.weight", (2, 2)), ("a.bias", (2,)), ("norm.weight", (2,)), ("experts.up_bias", (4, 2)))
    decayed, plain = parameter_groups(named, MATRICES)
    assert decayed == {"params": [named[0][1]]}
    assert plain == {"params": [each for _, each in named[1:]], "weight_decay": 0.0}


def test_no_group_is_empty() -> None:
    matrices = parameters(("lora_A.weight", (2, 2)))
    assert parameter_groups(matrices, MATRICES) == [matrices[0][1]]
    vectors = parameters(("norm.weight", (2,)))
    assert parameter_groups(vectors, MATRICES) == [{"params": [vectors[0][1]], "weight_decay": 0.0}]


def test_a_matrix_that_zero_3_has_sliced_is_still_one() -> None:
    sliced: Any = torch.nn.Parameter(torch.zeros(0))
    sliced.ds_shape = torch.Size((2, 2))
    vector = torch.nn.Parameter(torch.zeros(2))
    decayed, _ = parameter_groups([("a.weight", sliced), ("a.bias", vector)], MATRICES)
    assert decayed == {"params": [sliced]}
