"""The policy ``paper``: Frenzy's memory formula, enumeration and order, kept as the reference.

    W = V*h + l*(12*h^2 + 13*h)                                parameters
    states per GPU      = 20*W/t                               bytes
    activations per GPU = s*b*h*l*(10 + 24/t + 5*a*s/(h*t))    bytes, b = B/d, no accumulation

(h hidden size, l layers, V vocabulary, a heads, s sequence length, B global batch.) Tensor
parallel degree t divides a, t <= 64; data parallel degree d = 2^i <= B; n = d*t GPUs. Plans are
sorted by (n, memory); throughput plays no part. Source: Frenzy (arXiv 2412.14479) and its
simulator; activations after Korthikanti et al. 2022, table 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import PlanRow
from frenzy.core.memory.host_memory import resting_terms
from frenzy.core.models.parameters import ModelShape
from frenzy.core.planning.candidates import Ranked, Refused, TypeFacts, explain_paper, gpu_facts
from frenzy.core.planning.grid import divisors, grid_of
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, MemoryTerm
from frenzy.core.values.units import format_bytes

_MAX_TENSOR_PARALLEL: Final = 64


@dataclass(frozen=True, slots=True)
class PaperPlan:
    """Degrees and predicted memory; the same for every GPU type."""

    dp: int
    tp: int
    num_bytes: int
    states_bytes: int

    @property
    def num_gpus(self) -> int:
        return self.dp * self.tp


def paper_parameters(shape: ModelShape) -> int:
    """W = V*h + l*(12*h^2 + 13*h)."""
    hidden = shape.hidden_size
    return shape.vocab_size * hidden + shape.num_layers * (12 * hidden**2 + 13 * hidden)


def paper_memory(shape: ModelShape, *, sequence_length: int, batch_per_rank: float, tp: int) -> tuple[float, float]:
    """(states, activations) in bytes on each GPU."""
    hidden, heads, length = shape.hidden_size, shape.num_heads, sequence_length
    states = 20.0 * paper_parameters(shape) / tp
    per_layer = 10 + 24 / tp + 5 * heads * length / (hidden * tp)
    return states, length * batch_per_rank * hidden * shape.num_layers * per_layer


def paper_micro_batches(global_batch: int) -> tuple[int, ...]:
    """What a rank gets of the batch, ascending: nothing is accumulated, and there are powers of two of ranks."""
    degrees = (2**power for power in range(global_batch.bit_length()))
    return tuple(sorted(global_batch // each for each in degrees if global_batch % each == 0))


def paper_plans(shape: ModelShape, *, global_batch: int, sequence_length: int) -> tuple[PaperPlan, ...]:
    """All plans in the paper's order: number of GPUs, then memory, both ascending."""
    plans = []
    for tp in divisors(shape.num_heads, _MAX_TENSOR_PARALLEL):
        dp = 1
        while dp <= global_batch:
            states, activations = paper_memory(
                shape, sequence_length=sequence_length, batch_per_rank=global_batch / dp, tp=tp
            )
            plans.append(PaperPlan(dp, tp, round(states + activations), round(states)))
            dp *= 2
    return tuple(sorted(plans, key=lambda plan: (plan.num_gpus, plan.num_bytes)))


def paper_candidates(request: PlanRequest, cluster: Cluster, calibration: Calibration) -> tuple[Candidate, ...]:
    """The paper's plans on each GPU type of ``cluster``, smaller types first; all run as ZeRO stage 1.

    Wider than the cluster only those that more GPUs alone would make fit; where nothing is left, the narrowest of each.
    """
    plans = paper_plans(request.shape, global_batch=request.global_batch_size, sequence_length=request.sequence_length)
    facts = sorted(gpu_facts(request, cluster, calibration), key=lambda each: (each.gpu.memory_bytes, each.gpu.name))
    found: list[Ranked | Refused] = []
    too_large: dict[str, Ranked | Refused] = {}
    for plan in plans:
        if request.micro_batch_size not in (None, max(1, request.global_batch_size // plan.dp)):
            continue
        for each in facts:
            if plan.num_gpus <= each.num_gpus or _fits_card(request, each, plan):
                found.append(_verdict(request, each, plan))
            elif each.gpu.name not in too_large:
                too_large[each.gpu.name] = _verdict(request, each, plan)
    return explain_paper(found or too_large.values())


def _fits_card(request: PlanRequest, facts: TypeFacts, plan: PaperPlan) -> bool:
    return plan.num_bytes + request.extra_bytes_per_gpu <= facts.gpu.memory_bytes


def _verdict(request: PlanRequest, facts: TypeFacts, plan: PaperPlan) -> Ranked | Refused:
    whole = request.global_batch_size % plan.dp == 0
    micro_batch = max(1, request.global_batch_size // plan.dp)
    row = PlanRow(plan.dp, plan.tp, zero_stage=1, micro_batch=micro_batch, accumulation=1, checkpointing=False)
    resource_plan = facts.plan(row, _prediction(plan, facts, row))
    if not whole:
        detail = f"The global batch of {request.global_batch_size} is no multiple of {plan.dp} data-parallel ranks."
        return Refused(resource_plan, Reason(code=ReasonCode.PREDICTED_NOT_LAUNCHABLE, detail=detail))
    refusal = facts.refusal(resource_plan)
    too_few = refusal is not None and refusal.code is ReasonCode.NOT_ENOUGH_GPUS
    if (refusal is None or too_few) and not _fits_card(request, facts, plan):  # more GPUs alone would not do
        lacking = plan.num_bytes + request.extra_bytes_per_gpu - facts.gpu.memory_bytes
        detail = (
            f"{resource_plan.plan_id} needs {format_bytes(plan.num_bytes)} by the paper's formula, "
            f"{format_bytes(lacking)} more than {facts.gpu.name} has."
        )
        refusal = Reason(code=ReasonCode.INSUFFICIENT_GPU_MEMORY, detail=detail)
    return Refused(resource_plan, refusal) if refusal else Ranked(resource_plan)


def _prediction(plan: PaperPlan, facts: TypeFacts, row: PlanRow) -> MemoryPrediction:
    """The formula's; host memory, of which the paper says nothing, as far as it needs no other model."""
    terms = (
        MemoryTerm(name="model states", num_bytes=plan.states_bytes, equation="20*W/t"),
        MemoryTerm(
            name="activations",
            num_bytes=plan.num_bytes - plan.states_bytes,
            equation="s*b*h*l*(10 + 24/t + 5*a*s/(h*t))",
        ),
    )
    host = resting_terms(facts.workload, grid_of([row])).of_plan(0)
    ranks = min(plan.num_gpus, max(1, facts.gpus_per_node))
    return MemoryPrediction(
        peak_allocated_bytes=plan.num_bytes,
        required_bytes=plan.num_bytes,
        host_bytes=sum(each.bytes_of(ranks) for each in host),
        host_terms=host,
        at="the sum of states and activations",
        terms=tuple(sorted(terms, key=lambda term: -term.num_bytes)),
    )
