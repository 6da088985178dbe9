"""What a trace of one model found: the coefficients of a model whose family has none.

The trace comes with the config, under ``MODEL_TRACE``: whoever can run the model's class on tensors without data
makes it (``frenzy.trainer.trace.one_model``). Its coefficients hold for that model alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, Attention, with_fused_loss_of
from frenzy.core.memory.calibration import Calibration
from frenzy.core.models.module_tree import MODULE_TREE, TREE_PROBLEM
from frenzy.core.values import codec

MODEL_TRACE: Final = "model_trace"
# Of the predicted peak, beyond which a card must have it: twice what families with a closed form need.
HEADROOM_SHARE: Final = 0.1
# Whose fused loss was traced, with the same code for every family.
_USUAL_HEAD: Final = "llama"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrace:
    """fuses_loss: whether the trainer's fused loss can take the place of the model's. versions: of the libraries.

    problem: why the model could not be traced; there are no coefficients then.
    """

    activations: tuple[ActivationCoefficients, ...] = ()
    fuses_loss: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def has_sdpa(self) -> bool:
        """Whether the model runs with torch's fused attention."""
        return any(each.attention is Attention.SDPA for each in self.activations)

    @property
    def sentence(self) -> str:
        """What a plan says of it."""
        made_with = ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))
        return f"From a trace of this very model with {made_with}, with a margin of {HEADROOM_SHARE:.0%}."

    def is_newer_than(self, release: str) -> bool:
        """Whether ``release`` of transformers may keep more than the trace, which a newer one made, found."""
        own = self.versions.get("transformers")
        return own is not None and release_numbers(release) < release_numbers(own)


def release_numbers(release: str) -> tuple[int, int]:
    """The first two numbers of a release such as 4.48.1, which tell what it keeps."""
    major, minor, *_ = release.split(".")
    return int(major), int(re.match(r"[0-9]*", minor)[0] or 0)  # type: ignore[index]  # matches anything


def trace_in(config: Mapping[str, Any] | None) -> ModelTrace | None:
    """The trace that comes with ``config``, if one does."""
    document = (config or {}).get(MODEL_TRACE)
    return None if document is None else codec.decode(ModelTrace, document)


def library_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` as the library knows it, without what was measured of its model."""
    return {name: value for name, value in config.items() if name not in (MODULE_TREE, TREE_PROBLEM, MODEL_TRACE)}


def calibrated(calibration: Calibration, trace: ModelTrace | None) -> Calibration:
    """``calibration`` with the coefficients of a traced model, and the margin that goes with them."""
    if trace is None:
        return calibration
    known = calibration.of_family(_USUAL_HEAD) if trace.fuses_loss else ()
    fused = [found for each in trace.activations if (found := with_fused_loss_of(known, each)) is not None]
    activations = (*trace.activations, *fused, *calibration.activations)
    return replace(calibration, activations=activations, headroom_share=HEADROOM_SHARE)
