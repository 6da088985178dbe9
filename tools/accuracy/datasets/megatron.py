"""Memory of a training step in the layout of Megatron-LM and nanotron, without pipeline stages.

16-bit weights, gradients summed in fp32, fp32 master weights and Adam's states; tensor
parallelism with sequence parallelism divides weights and all activations (Korthikanti et al. 2022,
Reducing Activation Recomputation, section 4); ZeRO-1 divides masters and states. Published runs
use it, the trainer does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from frenzy.core.memory.activation_coefficients import ActivationCoefficients
from frenzy.core.memory.cuda_memory import HOPPER_WORKSPACES_BYTES
from frenzy.core.models.parameters import ModelShape
from frenzy.core.values.resource_plan import MemoryPrediction, MemoryTerm


@dataclass(frozen=True, kw_only=True)
class MegatronRun:
    """One published run. zero_stage: 0 or 1."""

    shape: ModelShape
    coefficients: ActivationCoefficients
    micro_batch: int
    sequence_length: int
    dp: int
    tp: int
    zero_stage: int
    fused_norms: bool = True

    @property
    def num_tokens(self) -> int:
        return self.micro_batch * self.sequence_length

    @property
    def num_gpus(self) -> int:
        return self.dp * self.tp


def predict_megatron_memory(run: MegatronRun) -> MemoryPrediction:
    """Peak on the first GPU of ``run`` and its breakdown; required_bytes is the peak, without any margin."""
    resident = _resident(run)
    moments = {
        "loss": (*resident, *_activations(run), _extra(run, "gradient of the loss", "in_loss")),
        "first backward layer": (
            *resident,
            *_activations(run),
            _extra(run, "backward pass of one layer", "in_backward"),
        ),
    }
    at = max(moments, key=lambda name: sum(each.num_bytes for each in moments[name]))
    terms = tuple(sorted((each for each in moments[at] if each.num_bytes), key=lambda each: -each.num_bytes))
    peak = sum(each.num_bytes for each in terms)
    return MemoryPrediction(peak_allocated_bytes=peak, required_bytes=peak, host_bytes=0, at=at, terms=terms)


def _resident(run: MegatronRun) -> tuple[MemoryTerm, ...]:
    local = run.shape.num_parameters / run.tp
    owners = run.dp if run.zero_stage else 1
    return (
        MemoryTerm(name="weights", num_bytes=round(2 * local), equation="2*N/tp"),
        MemoryTerm(name="gradients in fp32", num_bytes=round(4 * local), equation="4*N/tp"),
        MemoryTerm(
            name="master weights and states", num_bytes=round(12 * local / owners), equation="12*N/tp, /dp in ZeRO-1"
        ),
        MemoryTerm(name="cuBLAS workspaces", num_bytes=HOPPER_WORKSPACES_BYTES, equation="one for each of two threads"),
    )


def _activations(run: MegatronRun) -> tuple[MemoryTerm, ...]:
    """Divided by tensor parallelism as a whole; fused norms keep their input in 2 bytes, not in 4.

    What tensor parallelism gathers stays: the inputs of the two column-parallel maps of each layer
    and of the head, whole on every rank (one share of them is among the divided activations).
    """
    layers, hidden = run.shape.num_layers, run.shape.hidden_size
    saved = 6 * hidden if run.fused_norms else 0
    layer = run.coefficients.layer.per_token(run.shape, run.sequence_length) - saved
    outside = run.coefficients.outside.per_token(run.shape, run.sequence_length)
    gathered = 2 * hidden * (2 * layers + 1) * run.num_tokens * (1 - 1 / run.tp)
    divided = run.num_tokens / run.tp
    return (
        MemoryTerm(
            name="activations of the layers",
            num_bytes=round(layers * layer * divided),
            equation="L*t*(bytes a layer keeps)/tp",
        ),
        MemoryTerm(
            name="activations outside the layers",
            num_bytes=round(outside * divided),
            equation="t*(embedding, last norm, loss)/tp",
        ),
        MemoryTerm(name="gathered inputs", num_bytes=round(gathered), equation="(2*L + 1)*2*t*h*(tp - 1)/tp"),
    )


def _extra(run: MegatronRun, name: str, part: str) -> MemoryTerm:
    found = [each.per_token(run.shape, run.sequence_length) for each in getattr(run.coefficients, part)]
    extra = max(found, default=0.0) * run.num_tokens / run.tp
    return MemoryTerm(name=name, num_bytes=round(extra), equation="t*(highest extra)/tp")
