"""Cards before Ampere: where torch's own attention has no kernel, every score is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.marp_values import gpt2_config, llama_config

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.memory.activation_coefficients import ActivationSetting, TokenBytes
from frenzy.core.memory.whole_scores import computes_whole_scores, with_whole_scores
from frenzy.core.models.shape import model_shape
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision

ALONE = model_shape(gpt2_config())
SHARED = model_shape(llama_config(512, 8, 8, num_key_value_heads=2))


@pytest.mark.parametrize(
    ("capability", "precision", "whole_alone", "whole_shared"),
    [
        ("7.5", Precision.BF16, True, True),
        ("7.0", Precision.AUTOCAST_BF16, True, True),
        ("7.5", Precision.FP16, False, True),
        ("6.0", Precision.FP32, False, False),
        ("8.0", Precision.BF16, False, False),
        ("9.0", Precision.FP16, False, False),
        ("12.0", Precision.BF16, False, False),
        (None, Precision.BF16, False, False),
    ],
)
def test_what_torch_has_no_kernel_for(
    capability: str | None, precision: Precision, whole_alone: bool, whole_shared: bool
) -> None:
    whole = [computes_whole_scores(capability, precision, each, shares_heads=True) for each in (ALONE, SHARED)]
    assert whole == [whole_alone, whole_shared]
    assert computes_whole_scores(capability, precision, SHARED, shares_heads=False) == whole_alone


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_layer_keeps_its_probabilities_in_fp32_and_what_dropout_makes_of_them(dropout: float) -> None:
    shape = replace(ALONE, attention_dropout=dropout, residual_dropout=0.0, embedding_dropout=0.0)
    setting = ActivationSetting(precision=Precision.BF16, checkpointing=False, kind=DeviceKind.CUDA)
    own = default_calibration().activation(shape, setting)
    assert own is not None
    found = with_whole_scores(own, shape)
    assert found.layer.scores == (9 if dropout else 4)
    assert max(each.scores for each in found.in_backward) == 8
    assert found.outside == own.outside
    assert set(own.in_backward) < set(found.in_backward)
    again = default_calibration().activation(shape, replace(setting, checkpointing=True))
    assert again is not None
    assert with_whole_scores(again, shape).layer == again.layer == TokenBytes(hidden=2)
    assert max(each.scores for each in with_whole_scores(again, shape).in_backward) == (17 if dropout else 12)
