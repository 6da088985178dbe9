"""What a card must have beyond the peak of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frenzy.core.memory.activation_coefficients import Attention
from frenzy.core.memory.allocator_holes import leaves_holes, lost_bytes
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.cuda_memory import CONTEXT_BYTES, OUTSIDE_ON_SEVERAL_CARDS_BYTES
from frenzy.core.memory.torch_kernels import TorchRun
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.evaluation.deepspeed_run import DeepSpeedRun
from frenzy.evaluation.published import OWN_RUNS, ModelledRun, PublishedRow

_HOOKED_TERM: Final = "inputs' gradients that hooks keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """What is outside of torch's allocator, and two shares for what the allocator loses.

    context_bytes: outside on one GPU; on several it is the most that logs show. peak_share: of the peak, for
    rounding and fragments, as in plans of the product. hooked_share: of the activations that stay until the end
    of the backward pass, among which every later allocation has to find its place.
    The values hold for every file; ``tools.accuracy`` finds the second one again from the fitting half.
    """

    context_bytes: int = CONTEXT_BYTES
    peak_share: float = Calibration.headroom_share
    hooked_share: float = 0.20

    def required_bytes(self, run: ModelledRun, prediction: MemoryPrediction) -> int:
        """What the card must have; for DeepSpeed's runs what a plan of the product requires."""
        if isinstance(run, DeepSpeedRun):
            return prediction.required_bytes
        hooked = sum(each.num_bytes for each in prediction.terms if each.name == _HOOKED_TERM)
        fragments = self.peak_share * prediction.peak_allocated_bytes + self.hooked_share * 2 * hooked
        beside = OUTSIDE_ON_SEVERAL_CARDS_BYTES if run.num_gpus > 1 else self.context_bytes
        return round(prediction.peak_allocated_bytes + fragments) + beside + _holes(run)


def _holes(run: ModelledRun) -> int:
    """What the allocator may lose."""
    if not isinstance(run, TorchRun):
        return 0
    eager = run.coefficients.attention is Attention.EAGER
    if not leaves_holes(segments_grow=run.segments_grow, lengths_vary=run.lengths_vary, has_scores=eager):
        return 0
    logits = not run.fused_linear_loss
    return run.micro_batch * lost_bytes(run.shape, run.sequence_length, has_logits=logits, has_scores=eager)


def is_fitted(row: PublishedRow) -> bool:
    """Whether a row belongs to the part that anything may be fitted to: every second one of a published set.

    No goal counts these rows. Nothing is ever fitted to runs of one's own: all of them are scored.
    """
    return row.number % 2 == 0 and row.dataset != OWN_RUNS
