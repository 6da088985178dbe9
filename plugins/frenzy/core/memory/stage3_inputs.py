"""What ZeRO stage 3 keeps beside frozen weights: the inputs of their linear maps.

torch's linear map keeps its input only where its weight is trained. Stage 3 replaces the map by a function of
its own, which saves the input always (DeepSpeed, runtime/zero/linear.py: LinearFunctionForZeroStage3.setup_context).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, AdapterSetting, Loss, TokenBytes
from frenzy.core.memory.calibration import Calibration
from frenzy.core.models.shape import ModelShape
from frenzy.core.values.job import Precision

# transformers' Conv1D multiplies by itself: no linear map that DeepSpeed could replace.
_OTHER_MAPS: Final = frozenset({"gpt2"})
_HALVES: Final = frozenset({Precision.BF16, Precision.FP16})


def under_stage3(
    own: ActivationCoefficients, shape: ModelShape, calibration: Calibration, *, quantised: bool
) -> ActivationCoefficients:
    """``own``, of a model with adapters, and the inputs of its frozen maps.

    The head is such a map. Its input goes when it has gone backward, before any layer does. A fused loss keeps
    the hidden states anyway. A checkpointed layer keeps the inputs while it is computed again. Maps of 4-bit
    weights (quantised) have a function of their own.
    """
    if own.adapters is None:
        return own
    inputs = TokenBytes() if quantised else _inputs_of_frozen_maps(own, own.adapters, shape, calibration)
    head = TokenBytes(hidden=0.0 if own.loss is Loss.FUSED else 2.0 if own.precision in _HALVES else 4.0)
    again = inputs if own.checkpointing else TokenBytes()
    return replace(
        own,
        layer=own.layer if own.checkpointing else own.layer.plus(inputs),
        outside=own.outside.plus(head),
        in_backward=tuple(each.plus(again).minus(head) for each in own.in_backward),
    )


def _inputs_of_frozen_maps(
    own: ActivationCoefficients, adapters: AdapterSetting, shape: ModelShape, calibration: Calibration
) -> TokenBytes:
    """What a layer with adapters on all maps keeps more than one with those of ``adapters``."""
    every = tuple(sorted({each.name.rsplit(".", 1)[-1] for each in shape.layer if each.is_linear}))
    if shape.family in _OTHER_MAPS or set(every) <= set(adapters.targets):
        return TokenBytes()
    setting = replace(own.setting, checkpointing=False)
    found = [
        calibration.activation(shape, replace(setting, adapters=replace(adapters, targets=targets, dropout=False)))
        for targets in (adapters.targets, every)
    ]
    some, all_of_them = found[0], found[1] or calibration.activation(shape, replace(setting, adapters=None))
    return TokenBytes() if some is None or all_of_them is None else all_of_them.layer.minus(some.layer)
