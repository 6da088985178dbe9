"""Keeping packed documents apart costs a mask, in every layer unless it is checkpointed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.marp_values import CALIBRATION, gpt2_config, job, llama_config, request

from frenzy.core.memory.activation_coefficients import Attention
from frenzy.core.memory.closed_form import activations_at_loss_bytes
from frenzy.core.memory.model_inputs import Workload
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision

LENGTH, MICRO = 256, 4
PAIRS = MICRO * LENGTH**2
INPUTS = 16 * MICRO * LENGTH
PLAIN = [(1, 1, 1, MICRO, 1, False)]
CHECKPOINTED = [(1, 1, 1, MICRO, 1, True)]


def added(workload: Workload, plans: list[tuple[int, int, int, int, int, bool]]) -> float:
    """What masks add to what is held at the loss."""
    grid = grid_of(plans)
    without = activations_at_loss_bytes(workload, grid, CALIBRATION)
    with_masks = activations_at_loss_bytes(replace(workload, document_masks=True), grid, CALIBRATION)
    assert without is not None
    assert with_masks is not None
    return float(with_masks[0] - without[0])


def workload(config: dict[str, object], precision: Precision = Precision.BF16) -> Workload:
    asked = request(model_shape(config), job(sequence_length=LENGTH, precision=precision))
    return workload_of(asked, DeviceKind.VIRTUAL)


@pytest.mark.parametrize(("precision", "bytes_each"), [(Precision.BF16, 2), (Precision.FP32, 4)])
def test_each_layer_keeps_the_mask_in_the_format_it_computes_in(precision: Precision, bytes_each: int) -> None:
    known = workload(gpt2_config(), precision)
    masks = known.shape.num_layers * bytes_each * PAIRS
    assert added(known, PLAIN) == pytest.approx(masks + PAIRS + INPUTS)


def test_checkpointed_layers_share_one_mask_of_a_byte() -> None:
    assert added(workload(gpt2_config()), CHECKPOINTED) == pytest.approx(PAIRS + INPUTS)


def test_shared_keys_and_values_are_repeated_for_a_kernel_that_takes_a_mask() -> None:
    known = workload(llama_config())
    assert known.shape.key_value_width < known.shape.query_width
    repeated = 2 * 2 * (known.shape.query_width - known.shape.key_value_width) * MICRO * LENGTH
    masks = known.shape.num_layers * (2 * PAIRS + repeated)
    assert added(known, PLAIN) == pytest.approx(masks + PAIRS + INPUTS)


def test_eager_attention_has_a_mask_in_any_case() -> None:
    assert added(replace(workload(gpt2_config()), attention=Attention.EAGER), PLAIN) == pytest.approx(INPUTS)
