"""A run of DeepSpeed on GPUs as somebody published it, predicted by the product's own memory model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import predict_memory
from frenzy.core.memory.host_offload import optimizer_state_bytes
from frenzy.core.memory.model_inputs import PlanRow, Workload
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.planning.grid import grid_of
from frenzy.core.values.resource_plan import MemoryPrediction, MemoryTerm


@dataclass(frozen=True, kw_only=True)
class DeepSpeedRun:
    """One run.

    held_logits_bytes: of each token and entry of the vocabulary, which a script keeps from one step to
    the next because it keeps the model's outputs. keeps_gathered: linear maps keep the weights that stage 3
    gathered from the forward to the backward pass. Up to 0.14 DeepSpeed replaced them by its own only while
    zero.Init made the model (partition_parameters.py); torch's keep a view of the weight. offload_parameters:
    stage 3's share of the weights is on the host and comes to the card tensor by tensor, when it is gathered.
    made_whole: a model not made under zero.Init is moved to the card whole before stage 3 divides it
    (runtime/engine.py, _configure_distributed_model). loads_best: the Trainer loads its best checkpoint at the end.
    """

    workload: Workload
    plan: PlanRow
    calibration: Calibration
    held_logits_bytes: int = 0
    keeps_gathered: bool = False
    offload_parameters: bool = False
    made_whole: bool = False
    loads_best: bool = False


def predict_deepspeed_memory(run: DeepSpeedRun) -> MemoryPrediction:
    """Peak and requirement of one GPU, as a plan of the product has them."""
    table = predict_memory(run.workload, grid_of((run.plan,)), run.calibration)
    if table is None:
        raise ValueError("a run without coefficients; ask for them before")
    found = table.prediction(0)
    terms = [each for each in (_held_logits(run), _kept_weights(run, found), _weights_on_host(run)) if each.num_bytes]
    extra = sum(each.num_bytes for each in terms)
    training = replace(
        found,
        peak_allocated_bytes=found.peak_allocated_bytes + extra,
        required_bytes=found.required_bytes + round(extra * (1 + run.calibration.headroom_share)),
        terms=tuple(sorted((*found.terms, *terms), key=lambda each: -each.num_bytes)),
    )
    return _or_more(
        run, _or_more(run, training, "start", _made_whole(run)), "loading the best checkpoint", _loaded(run)
    )


def _or_more(run: DeepSpeedRun, found: MemoryPrediction, at: str, term: MemoryTerm) -> MemoryPrediction:
    """``found``, or another point in time, of one term, where that takes more."""
    more = term.num_bytes - found.peak_allocated_bytes
    if more <= 0:
        return found
    required = found.required_bytes + round(more * (1 + run.calibration.headroom_share))
    return replace(found, peak_allocated_bytes=term.num_bytes, required_bytes=required, at=at, terms=(term,))


def _made_whole(run: DeepSpeedRun) -> MemoryTerm:
    whole = run.workload.weight_bytes * run.workload.shape.num_parameters if run.made_whole else 0
    return MemoryTerm(name="weights before they are divided", num_bytes=whole, equation="w*N")


def _loaded(run: DeepSpeedRun) -> MemoryTerm:
    """Stage 3 puts the saved optimizer states on the card before torch's optimizer drops its own.

    The Trainer has DeepSpeed load them with the weights (``deepspeed_load_checkpoint``, ``_rigid_load_state_dict``).
    Stages 1 and 2 copy in place; what is offloaded is not on the card.
    """
    workload, plan = run.workload, run.plan
    ranks, weight = plan.dp * plan.tp, workload.weight_bytes
    trained = workload.trained.num_elements(workload.shape.num_layers)
    states = float(optimizer_state_bytes(workload, np.array(float(trained))))
    beside = ((workload.accumulation_bytes or weight) + 4.0) * trained
    held = (weight * workload.shape.num_parameters + beside + 2 * states) / ranks
    applies = run.loads_best and plan.zero_stage == 3 and not plan.offload and workload.storage is WeightStorage.PLAIN
    return MemoryTerm(
        name="weights, gradient buffer, masters, states twice",
        num_bytes=round(held) if applies else 0,
        equation="w*N/P + (a + 4)*S + 2*(states)",
    )


def _held_logits(run: DeepSpeedRun) -> MemoryTerm:
    tokens = run.workload.sequence_length * run.plan.micro_batch
    held = run.held_logits_bytes * run.workload.shape.vocab_size * tokens
    return MemoryTerm(name="outputs of the step before", num_bytes=held, equation="bytes*t*V")


def _kept_weights(run: DeepSpeedRun, found: MemoryPrediction) -> MemoryTerm:
    """Those that are not gathered any more: what linear maps keep of the others is the same memory."""
    whole = run.workload.weight_bytes * run.workload.shape.num_parameters if run.keeps_gathered else 0
    gathered = sum(each.num_bytes for each in found.terms if each.name == "gathered weights")
    kept = max(0, whole - gathered)
    return MemoryTerm(name="gathered weights kept by linear maps", num_bytes=kept, equation="w*N - gathered weights")


def _weights_on_host(run: DeepSpeedRun) -> MemoryTerm:
    part = run.workload.weight_bytes * run.workload.shape.num_parameters // run.plan.dp
    moved = -part if run.offload_parameters else 0
    return MemoryTerm(name="weights on the host", num_bytes=moved, equation="-w*N/P")
