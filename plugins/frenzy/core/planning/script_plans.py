"""Plans of a script whose model nobody names. Their memory is, in this order:

1. learnt from earlier runs of the same script (``measured_runs``), with twice the usual margin unless whole runs of the
   very plan are known;
2. declared by the specification, the same for every plan;
3. to be measured: where neither makes any plan fit, the narrowest plan with the smallest micro-batch takes a whole
   card of its type for a few steps, a rehearsal, and what it took is learnt.

Nothing is known of its time. A step is taken for a second on the cluster's fastest GPU, and for less on more of them:
that orders the plans, and predicts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.card_overheads import beside_bytes
from frenzy.core.memory.closed_form import PlanRow
from frenzy.core.memory.host_memory import resting_terms
from frenzy.core.memory.measured_runs import LearntPeak
from frenzy.core.models.parameters import ModelShape, ParameterTensor
from frenzy.core.planning.candidates import Ranked, Refused, TypeFacts, gpu_facts, memory_refusal, refused_candidates
from frenzy.core.planning.estimated_plans import plan_order, ranked_candidates
from frenzy.core.planning.grid import GridLimits, divisors, grid_of, plan_grid
from frenzy.core.planning.honours import honoured
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Checkpointing
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, MemoryTerm, ResourcePlan
from frenzy.core.values.units import counted

# Steps of a rehearsal: the second has the optimizer's moments, the third shows that it stays so.
REHEARSAL_STEPS: Final = 3
# What computing again adds to a step, and what the optimizer on the host is taken to.
_AGAIN: Final = 4 / 3
_TO_HOST: Final = 1.5
_Order = Callable[[ResourcePlan], tuple[float | str, ...]]
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


_TO_MEASURE: Final = f"the whole card, to measure it in {REHEARSAL_STEPS} steps"


def script_candidates(request: PlanRequest, cluster: Cluster, calibration: Calibration) -> tuple[Candidate, ...]:
    """Plans whose memory is known, ranked, or those of a rehearsal where none of them fits; refused ones last."""
    types = [_Type(each, calibration) for each in gpu_facts(request, cluster, calibration)]
    fastest = max((each.facts.gpu.flops_per_s for each in types), default=1.0)
    found = [verdict for each in types for verdict in each.known(fastest)]
    if not any(isinstance(each, Ranked) for each in found):
        tried = [verdict for each in types for verdict in each.rehearsals(fastest)]
        # as they were measured, if at all; where a rehearsal is refused too, its reason is the one that helps
        found = [*tried, *(each for each in found if request.job.memory is not None or not tried)]
    order = _largest_first(plan_order(request))
    fitting = sorted((each.plan for each in found if isinstance(each, Ranked)), key=order)
    refused = [each for each in found if isinstance(each, Refused)]
    return (*ranked_candidates(fitting, request), *refused_candidates(refused))


class _Type:
    """The script's plans on one GPU type."""

    def __init__(self, facts: TypeFacts, calibration: Calibration) -> None:
        self.facts, self._calibration = facts, calibration
        self._request, self._runs = facts.request, facts.request.measured_runs

    def known(self, fastest: float) -> Iterator[Ranked | Refused]:
        """Plans whose memory was learnt or is declared; of as many GPUs, those that none beats in everything."""
        learnt = [plan for row in self._rows() if (plan := self._learnt_plan(row, fastest)) is not None]
        shapes = {each.shape for each in learnt}
        declared = [] if self._request.job.memory is None else [self._declared(row, fastest) for row in self._wide()]
        plans = [*learnt, *(each for each in declared if each.shape not in shapes)]
        verdicts = [self._verdict(each) for each in plans]
        yield from _undominated([each.plan for each in verdicts if isinstance(each, Ranked)], plan_order(self._request))
        yield from (each for each in verdicts if isinstance(each, Refused))

    def rehearsals(self, fastest: float) -> Iterator[Ranked | Refused]:
        """The narrowest plans that may fit the card, with the smallest micro-batch; none where memory is declared."""
        if self._request.job.memory is not None:
            return
        plans = [self._rehearsal(row, fastest) for row in self._rows()]
        verdicts = [self._verdict(each) for each in plans]
        possible = [each.plan for each in verdicts if isinstance(each, Ranked)]
        if not possible:
            yield from (each for each in verdicts if isinstance(each, Refused))
            return
        narrowest = min(each.num_gpus for each in possible)
        smallest = min(each.micro_batch_size for each in possible if each.num_gpus == narrowest)
        for each in possible:
            if (each.num_gpus, each.micro_batch_size) == (narrowest, smallest):
                yield Ranked(each)

    def _rows(self) -> Iterable[PlanRow]:
        """Every plan that the script may run with."""
        training, virtual = self._request.job.training, self.facts.gpu.kind is DeviceKind.VIRTUAL
        limits = GridLimits(
            max_gpus=self._most, max_tp=1, max_micro_batch=training.global_batch_size, offload=not virtual
        )
        grid = plan_grid(UNNAMED_MODEL, training.global_batch_size, training.gradient_checkpointing, limits)
        return honoured(grid, self._request).rows()

    def _wide(self) -> Iterable[PlanRow]:
        """One plan for each number of GPUs: declared memory is the same for all."""
        batch, training = self._request.global_batch_size, self._request.job.training
        checkpointing = training.gradient_checkpointing is Checkpointing.ON
        rows = [PlanRow(dp, 1, 1, batch // dp, 1, checkpointing) for dp in divisors(batch, self._most)]
        return honoured(grid_of(rows), self._request).rows()

    @property
    def _most(self) -> int:
        workload = self._request.job.workload
        return max(self.facts.num_gpus, 1 if workload is None else workload.min_gpus)

    def _learnt_plan(self, row: PlanRow, fastest: float) -> ResourcePlan | None:
        empty = self._plan(row, _memory(0, 0, "nothing"), fastest)
        peak = self._runs.learnt(self.facts.gpu.kind, empty.shape)
        return None if peak is None else replace(empty, memory=self._with_host(row, self._learnt(row, peak)))

    def _learnt(self, row: PlanRow, peak: LearntPeak) -> MemoryPrediction:
        """What was run on a card fits it, however little was left."""
        share = self._calibration.headroom_share * (1 if peak.is_own and peak.is_whole else 2)
        margin = max(share * peak.peak_bytes, self._calibration.headroom_bytes)
        beside = float(beside_bytes(self.facts.gpu.kind, grid_of([row]))[0])
        what = f"learnt from {counted(peak.num_runs, 'run')} of {'this plan' if peak.is_own else 'another plan'}"
        required, card = round(peak.peak_bytes + margin + beside), self.facts.gpu.memory_bytes
        if peak.is_own and peak.peak_bytes <= card:
            required = min(required, card)
        return replace(_memory(peak.peak_bytes, required, what), learnt_from=peak.num_runs)

    def _declared(self, row: PlanRow, fastest: float) -> ResourcePlan:
        """At least what such a plan was seen to run out of."""
        memory = self._request.job.memory
        declared = 0 if memory is None else memory.per_gpu_bytes
        plan = self._plan(row, _memory(declared, declared, "memory.per_gpu as declared"), fastest)
        least = max(declared, self._runs.least_bytes(self.facts.gpu.kind, plan.shape))
        known = replace(plan.memory, peak_allocated_bytes=least, required_bytes=least, is_declared=True)
        terms = (replace(known.terms[0], num_bytes=least),)
        return replace(plan, memory=self._with_host(row, replace(known, terms=terms)))

    def _rehearsal(self, row: PlanRow, fastest: float) -> ResourcePlan:
        """The whole card; more where it is known not to suffice."""
        card = self.facts.gpu.memory_bytes
        plan = self._plan(row, replace(_memory(card, card, _TO_MEASURE), is_rehearsal=True), fastest)
        least = self._runs.least_bytes(self.facts.gpu.kind, plan.shape)
        if least < card:
            return replace(plan, memory=self._with_host(row, plan.memory))
        known = replace(_memory(least, least, "what earlier runs took at least"), learnt_from=1)
        return replace(plan, memory=self._with_host(row, known))

    def _plan(self, row: PlanRow, memory: MemoryPrediction, fastest: float) -> ResourcePlan:
        slower = (_AGAIN if row.checkpointing else 1.0) * (_TO_HOST if row.offload else 1.0)
        step_s = slower * _ASSUMED_STEP_S * fastest / self.facts.gpu.flops_per_s / row.dp
        # what runs of models took says nothing of an assumed time
        return replace(self.facts.plan(row, memory, step_s), model_step_s=None)

    def _with_host(self, row: PlanRow, memory: MemoryPrediction) -> MemoryPrediction:
        """Of the host, a process for each rank, which shares no libraries with another."""
        resting = resting_terms(self.facts.workload, grid_of([row])).of_plan(0)
        host = tuple(replace(each, of_each_rank=True) for each in resting)
        ranks = min(row.dp, max(1, self.facts.gpus_per_node))
        return replace(memory, host_bytes=sum(each.bytes_of(ranks) for each in host), host_terms=host)

    def _verdict(self, plan: ResourcePlan) -> Ranked | Refused:
        refusal = self.facts.refusal(plan)
        # what a run held beyond its plan says nothing where nothing was known
        extra = 0 if plan.memory.is_rehearsal else self._request.extra_bytes_per_gpu
        too_few = refusal is not None and refusal.code is ReasonCode.NOT_ENOUGH_GPUS
        if (refusal is None or too_few) and plan.memory.required_bytes + extra > plan.gpu_memory_bytes:
            refusal = memory_refusal(plan, extra)  # more GPUs alone would not do
        if refusal is None and plan.memory.host_bytes > self.facts.host_bytes_per_node:
            refusal = self.facts.host_refusal(plan)
        return Ranked(plan) if refusal is None else Refused(plan, refusal)


def _memory(peak_bytes: int, required_bytes: int, what: str) -> MemoryPrediction:
    return MemoryPrediction(
        peak_allocated_bytes=peak_bytes,
        required_bytes=required_bytes,
        host_bytes=0,
        at="any time",
        terms=(MemoryTerm(name=what, num_bytes=peak_bytes),),
    )


def _largest_first(order: _Order) -> _Order:
    """Rehearsals by their cards, of which the largest is the likeliest to suffice; other plans by ``order`` alone."""
    return lambda plan: (-plan.gpu_memory_bytes if plan.memory.is_rehearsal else 0, *order(plan))


def _undominated(plans: list[ResourcePlan], order: _Order) -> Iterator[Ranked]:
    """In order, each that needs less memory than all before it on as many GPUs."""
    least: dict[int, int] = {}
    for plan in sorted(plans, key=order):
        needed = plan.memory.required_bytes
        if needed < least.get(plan.num_gpus, needed + 1):
            least[plan.num_gpus] = needed
            yield Ranked(plan)
