"""A traced model is planned by its own coefficients, with a wider margin; nobody can bring a trace of their own."""

from __future__ import annotations

from dataclasses import replace

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.memory.activation_coefficients import ActivationCoefficients, ActivationSetting, Loss, TokenBytes
from frenzy.core.memory.model_trace import HEADROOM_SHARE, MODEL_TRACE, ModelTrace, calibrated, library_config, trace_in
from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import model_shape
from frenzy.core.values.codec import encode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision

SETTING = ActivationSetting(precision=Precision.BF16, checkpointing=False, kind=DeviceKind.CUDA)
OWN = ActivationCoefficients(
    family="new",
    precision=Precision.BF16,
    checkpointing=False,
    attention_dropout=True,
    hidden_dropout=True,
    layer=TokenBytes(constant=1000.0),
    outside=TokenBytes(constant=200.0, vocab=4.0),
    in_loss=(TokenBytes(vocab=8.0), TokenBytes(constant=100.0, vocab=-4.0)),
    in_backward=(TokenBytes(constant=500.0, vocab=-4.0),),
    kind=DeviceKind.CUDA,
)
TRACE = ModelTrace(activations=(OWN,), fuses_loss=True, versions={"torch": "2.13", "transformers": "5.23"})
SHAPE = replace(
    model_shape(
        {
            "model_type": "new",
            "num_attention_heads": 4,
            MODULE_TREE: [
                ["table", [300, 64], False],
                ["layers.0.map", [64, 64], True],
                ["layers.1.map", [64, 64], True],
            ],
        }
    ),
    attention_dropout=0.1,
)
FUSED = replace(SETTING, loss=Loss.FUSED)


def test_a_trace_is_read_from_the_config_it_comes_with() -> None:
    assert trace_in({"model_type": "new", MODEL_TRACE: encode(TRACE)}) == TRACE
    assert trace_in({"model_type": "llama"}) is None
    assert trace_in(None) is None


def test_the_library_is_given_nothing_that_was_measured() -> None:
    assert library_config({"model_type": "new", MODULE_TREE: [], MODEL_TRACE: {}}) == {"model_type": "new"}


def test_a_traced_model_has_its_own_coefficients_whatever_it_drops_out_and_a_wider_margin() -> None:
    plain = default_calibration()
    own = calibrated(plain, TRACE)
    assert own.activation(SHAPE, SETTING) == OWN
    assert own.headroom_share == HEADROOM_SHARE > plain.headroom_share
    assert calibrated(plain, None) is plain


def test_with_the_fused_loss_the_logits_of_all_tokens_are_gone() -> None:
    found = calibrated(default_calibration(), TRACE).activation(SHAPE, FUSED)
    assert found is not None
    assert (found.layer, found.outside.vocab) == (OWN.layer, 0.0)
    assert max(each.vocab for each in found.in_backward) <= 0.0


def test_a_model_that_changes_its_logits_has_no_fused_loss() -> None:
    assert calibrated(default_calibration(), replace(TRACE, fuses_loss=False)).activation(SHAPE, FUSED) is None


def test_what_a_plan_says_names_the_releases_and_the_margin() -> None:
    assert "torch 2.13, transformers 5.23, with a margin of 10%" in TRACE.sentence
