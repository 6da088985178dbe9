"""Plans of a script whose model nobody names: as wide as it may be, with the memory that the specification declares.

Nothing is known of its time. A step is taken for a second on the cluster's fastest GPU, and for less on more of them:
that orders the plans, and predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import PlanRow
from frenzy.core.memory.host_memory import resting_terms
from frenzy.core.models.parameters import ModelShape, ParameterTensor
from frenzy.core.planning.candidates import Ranked, Refused, TypeFacts, gpu_facts, memory_refusal, refused_candidates
from frenzy.core.planning.estimated_plans import plan_order, ranked_candidates
from frenzy.core.planning.grid import divisors, grid_of
from frenzy.core.planning.honours import honoured
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.job import Checkpointing
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, MemoryTerm

_ASSUMED_STEP_S: Final = 1.0
_NOTHING: Final = ParameterTensor("unknown", rows=0)
# Stands for a model of which nothing is known; nothing of its memory is predicted.
UNNAMED_MODEL: Final = ModelShape(
    family="unnamed",
    num_layers=0,
    hidden_size=1,
    num_heads=1,
    num_key_value_heads=1,
    head_dim=1,
    intermediate_size=1,
    vocab_size=1,
    max_positions=0,
    tied_embeddings=False,
    embeddings=(_NOTHING,),
    layer=(),
    head=(),
)


def declared_candidates(request: PlanRequest, cluster: Cluster, calibration: Calibration) -> tuple[Candidate, ...]:
    """One plan for each GPU type and number of GPUs that divides the global batch, ranked; refused ones last."""
    facts = gpu_facts(request, cluster, calibration)
    fastest = max((each.gpu.flops_per_s for each in facts), default=1.0)
    found = [verdict for each in facts for verdict in _of_type(each, fastest)]
    fitting = sorted((each.plan for each in found if isinstance(each, Ranked)), key=plan_order(request))
    refused = [each for each in found if isinstance(each, Refused)]
    return (*ranked_candidates(fitting, request), *refused_candidates(refused))


def _of_type(facts: TypeFacts, fastest: float) -> Iterator[Ranked | Refused]:
    request = facts.request
    batch, checkpointing = request.global_batch_size, request.job.training.gradient_checkpointing is Checkpointing.ON
    workload = request.job.workload
    most = max(facts.num_gpus, 1 if workload is None else workload.min_gpus)
    rows = [PlanRow(dp, 1, 1, batch // dp, 1, checkpointing) for dp in divisors(batch, most)]
    for row in honoured(grid_of(rows), request).rows():
        plan = facts.plan(row, _declared(facts, row), _ASSUMED_STEP_S * fastest / facts.gpu.flops_per_s / row.dp)
        refusal = facts.refusal(plan)
        if refusal is None and plan.memory.required_bytes + request.extra_bytes_per_gpu > plan.gpu_memory_bytes:
            refusal = memory_refusal(plan, request.extra_bytes_per_gpu)
        if refusal is None and plan.memory.host_bytes > facts.host_bytes_per_node:
            refusal = facts.host_refusal(plan)
        yield Ranked(plan) if refusal is None else Refused(plan, refusal)


def _declared(facts: TypeFacts, row: PlanRow) -> MemoryPrediction:
    """What is declared of the card; of the host, a process for each rank, which shares no libraries with another."""
    memory = facts.request.job.memory
    num_bytes = 0 if memory is None else memory.per_gpu_bytes
    resting = resting_terms(facts.workload, grid_of([row])).of_plan(0)
    host = tuple(replace(each, of_each_rank=True) for each in resting)
    ranks = min(row.dp, max(1, facts.gpus_per_node))
    return MemoryPrediction(
        peak_allocated_bytes=num_bytes,
        required_bytes=num_bytes,
        host_bytes=sum(each.bytes_of(ranks) for each in host),
        host_terms=host,
        at="any time",
        terms=(MemoryTerm(name="memory.per_gpu as declared", num_bytes=num_bytes),),
        is_declared=True,
    )
