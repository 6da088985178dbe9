"""Bytes of quantised weights against figures that can be worked out by hand."""

from __future__ import annotations

import pytest

from frenzy.core.models.parameters import ParameterTensor
from frenzy.core.models.weight_storage import WeightStorage, stored_tensor

MATRIX = ParameterTensor("mlp.up_proj", 4096, 1024, is_linear=True)
NORM = ParameterTensor("norm", 1024)
TABLES = 4 * (16 + 256)


def test_a_plain_matrix_takes_its_format_for_each_element() -> None:
    stored = stored_tensor(MATRIX, WeightStorage.PLAIN, 2)

    assert (stored.sharded, stored.beside) == (2 * 4096 * 1024, 0)


def test_nf4_takes_half_a_byte_and_a_scale_for_each_block_of_64() -> None:
    stored = stored_tensor(MATRIX, WeightStorage.NF4, 2)

    assert stored.sharded == 4096 * 1024 / 2
    assert stored.beside == 4096 * 1024 / 64 * 4 + TABLES


def test_double_quantisation_takes_about_one_byte_a_scale() -> None:
    stored = stored_tensor(MATRIX, WeightStorage.NF4_DOUBLE, 2)

    assert stored.beside == 4096 * 1024 / 64 * (1 + 4 / 256) + TABLES


def test_gptq_takes_a_scale_and_a_zero_for_each_group_of_inputs() -> None:
    stored = stored_tensor(MATRIX, WeightStorage.GPTQ, 2)

    assert stored.sharded == 4096 * 1024 / 2 + 2.5 * 4096 * 1024 / 128 + 4 * 1024


def test_gptq_without_groups_has_one_for_all_inputs_of_an_output() -> None:
    stored = stored_tensor(MATRIX, WeightStorage.GPTQ_UNGROUPED, 2)

    assert stored.sharded == 4096 * 1024 / 2 + 2.5 * 4096 + 4 * 1024


@pytest.mark.parametrize("storage", list(WeightStorage))
def test_norms_are_never_quantised(storage: WeightStorage) -> None:
    stored = stored_tensor(NORM, storage, 2)

    assert (stored.sharded, stored.beside) == (2 * 1024, 0)
