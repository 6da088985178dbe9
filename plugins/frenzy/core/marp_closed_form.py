"""The policy ``closed-form``: every plan through the memory and time models, ranked.

Memory does not depend on the GPU type, only on its kind, so one grid is predicted once for each
kind and compared with each type's capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.candidate_build import (
    Ranked,
    Refused,
    TypeFacts,
    gpu_facts,
    memory_refusal,
    refused_candidates,
    workload_of,
)
from frenzy.core.cluster import Cluster
from frenzy.core.errors import PermanentError, Reason, ReasonCode
from frenzy.core.job import Objective
from frenzy.core.memory import MemoryTable, PlanGrid, predict_memory
from frenzy.core.memory_calibration import Calibration
from frenzy.core.plan import Candidate, ResourcePlan
from frenzy.core.plan_grid import GridLimits, plan_grid
from frenzy.core.plan_request import PlanRequest
from frenzy.core.units import format_bytes, format_duration

# A plan this many times wider than the cluster is still looked at, to say what would help.
_BEYOND_CLUSTER: Final = 2


@dataclass(frozen=True, slots=True)
class _Predicted:
    """One kind's grid and its memory."""

    grid: PlanGrid
    memory: MemoryTable


def closed_form_candidates(request: PlanRequest, cluster: Cluster, calibration: Calibration) -> tuple[Candidate, ...]:
    """Feasible plans by rank, then refused ones; raises PermanentError for an unsupported model."""
    facts = gpu_facts(request, cluster, calibration)
    predicted = {
        kind: _predict(request, [each for each in facts if each.gpu.kind is kind], calibration)
        for kind in dict.fromkeys(each.gpu.kind for each in facts)
    }
    found = [verdict for each in facts for verdict in _verdicts(request, each, predicted[each.gpu.kind])]
    feasible = sorted((each.plan for each in found if isinstance(each, Ranked)), key=_order(request))
    refused = [each for each in found if isinstance(each, Refused)]
    return (*_ranked(feasible, request), *refused_candidates(refused))


def _predict(request: PlanRequest, facts: list[TypeFacts], calibration: Calibration) -> _Predicted:
    limits = GridLimits(
        max_gpus=max(1, max(each.num_gpus for each in facts) * _BEYOND_CLUSTER),
        max_tp=max(1, max(each.gpus_per_node for each in facts)),
    )
    training = request.job.training
    grid = plan_grid(request.shape, request.global_batch_size, training.gradient_checkpointing, limits)
    memory = predict_memory(workload_of(request, facts[0].gpu.kind), grid, calibration)
    if memory is None:
        raise _unsupported(request, calibration)
    return _Predicted(grid, memory)


def _unsupported(request: PlanRequest, calibration: Calibration) -> PermanentError:
    covered = sorted({each.family for each in calibration.activations})
    precision, dropout = request.job.training.precision, request.shape.has_dropout
    return PermanentError(
        Reason(
            code=ReasonCode.MODEL_NOT_SUPPORTED,
            detail=(
                f"The memory model has no coefficients for {request.shape.family} in {precision}"
                f"{' with dropout' if dropout else ''}; it covers {', '.join(covered) or 'nothing yet'}."
            ),
            remedy="Use a covered family, or trace this one with the calibration command.",
        )
    )


def _verdicts(request: PlanRequest, facts: TypeFacts, predicted: _Predicted) -> Iterator[Ranked | Refused]:
    """The plans of one type worth knowing of."""
    grid, memory = predicted.grid, predicted.memory
    step_s = facts.step_times_s(grid)
    num_gpus = grid.dp * grid.tp
    fits = memory.required_bytes + request.extra_bytes_per_gpu <= facts.gpu.memory_bytes
    reachable = fits & (num_gpus <= facts.num_gpus) & _allowed(request, facts, grid, step_s)
    failed = _failed_widths(request, facts)
    for index in _kept(grid, step_s, memory.required_bytes, reachable, failed):
        plan = _plan(facts, predicted, int(index), float(step_s[index]))
        refusal = facts.refusal(plan)
        yield Refused(plan, refusal) if refusal else Ranked(plan)
    for index in _explaining(num_gpus, memory, fits, reachable, facts):
        plan = _plan(facts, predicted, int(index), float(step_s[index]))
        refusal = facts.refusal(plan) or memory_refusal(plan, request.extra_bytes_per_gpu)
        yield Refused(plan, refusal)


def _allowed(request: PlanRequest, facts: TypeFacts, grid: PlanGrid, step_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Plans within what the trainer can run and the user's limits: what ``TypeFacts.refusal`` says, for all at once."""
    constraints, shape = request.job.constraints, request.shape
    num_gpus, run_s = grid.dp * grid.tp, step_s * request.total_steps
    allowed = np.ones(len(grid), dtype=np.bool_)
    if not shape.autotp or request.job.training.lora is not None:
        allowed &= grid.tp == 1
    allowed &= grid.tp <= max(1, facts.gpus_per_node)
    if constraints.max_gpus is not None:
        allowed &= num_gpus <= constraints.max_gpus
    if constraints.max_cost is not None:
        allowed &= facts.costs(num_gpus, run_s) <= constraints.max_cost
    if request.seconds_to_deadline is not None:
        allowed &= run_s <= request.seconds_to_deadline
    return allowed


def _failed_widths(request: PlanRequest, facts: TypeFacts) -> frozenset[tuple[int, int]]:
    """(GPUs, tensor parallel degree) on which this run failed: there every smaller plan is of interest."""
    return frozenset((each.num_gpus, each.tp) for each in request.excluded_shapes if each.gpu_type == facts.gpu.name)


def _kept(
    grid: PlanGrid,
    step_s: NDArray[np.float64],
    required: NDArray[np.int64],
    reachable: NDArray[np.bool_],
    failed: frozenset[tuple[int, int]],
) -> list[int]:
    """Plans that no other plan of as many GPUs beats in both time and memory.

    On a width where an attempt failed all plans stay: the memory-pressure ladder climbs among them.
    """
    num_gpus = grid.dp * grid.tp
    indices = np.flatnonzero(reachable)
    order = indices[np.lexsort((grid.tp[indices], required[indices], step_s[indices], num_gpus[indices]))]
    kept: list[int] = []
    width, least = -1, 0
    for index in order.tolist():
        if num_gpus[index] != width:
            width, least = int(num_gpus[index]), int(required[index]) + 1
        if required[index] < least or (width, int(grid.tp[index])) in failed:
            kept.append(index)
            least = min(least, int(required[index]))
    return kept


def _explaining(
    num_gpus: NDArray[np.int64],
    memory: MemoryTable,
    fits: NDArray[np.bool_],
    reachable: NDArray[np.bool_],
    facts: TypeFacts,
) -> list[int]:
    """For each number of GPUs the refused plan nearest to running; beyond the cluster only the narrowest."""
    required = memory.required_bytes
    explaining: list[int] = []
    for width in np.unique(num_gpus).tolist():
        here = np.flatnonzero((num_gpus == width) & ~reachable)
        if len(here) == 0 or (width > facts.num_gpus and reachable.any()):
            continue
        fitting = here[fits[here]]
        if width <= facts.num_gpus:
            explaining += [int(group[required[group].argmin()]) for group in (fitting, here[~fits[here]]) if len(group)]
        elif len(fitting):
            return [*explaining, int(fitting[required[fitting].argmin()])]
    return explaining


def _plan(facts: TypeFacts, predicted: _Predicted, index: int, step_time_s: float) -> ResourcePlan:
    grid = predicted.grid
    return facts.plan(
        dp=int(grid.dp[index]),
        tp=int(grid.tp[index]),
        zero_stage=int(grid.zero_stage[index]),
        micro_batch=int(grid.micro_batch[index]),
        accumulation=int(grid.accumulation[index]),
        checkpointing=bool(grid.checkpointing[index]),
        memory=predicted.memory.prediction(index),
        step_time_s=step_time_s,
    )


def _order(request: PlanRequest) -> Callable[[ResourcePlan], tuple[float | str, ...]]:
    """The sort key of the job's objective; see the docstring of ``marp``."""

    def key(plan: ResourcePlan) -> tuple[float | str, ...]:
        time_and_cost = (plan.predicted_run_s, plan.num_gpus, plan.predicted_cost)
        cost_and_time = (plan.predicted_cost, plan.predicted_run_s, plan.num_gpus)
        own = (plan.tp, plan.zero_stage, plan.activation_checkpointing, -plan.micro_batch_size, plan.gpu_type)
        return (*(cost_and_time if request.job.objective is Objective.COST else time_and_cost), *own)

    return key


def _ranked(plans: list[ResourcePlan], request: PlanRequest) -> tuple[Candidate, ...]:
    if not plans:
        return ()
    best, by_cost = plans[0], request.job.objective is Objective.COST
    first = Candidate(plan=best, rank=1, reason=_best_reason(best, len(plans), by_cost=by_cost))
    rest = (
        Candidate(plan=plan, rank=rank, reason=_later_reason(plan, best, by_cost=by_cost))
        for rank, plan in enumerate(plans[1:], start=2)
    )
    return (first, *rest)


def _best_reason(plan: ResourcePlan, num_plans: int, *, by_cost: bool) -> Reason:
    what = "Cheapest" if by_cost else "Fastest"
    tightest = plan.memory.terms[0]
    detail = (
        f"{what} of {num_plans} plans that fit: {format_duration(plan.step_time_s)} a step, "
        f"{format_duration(plan.predicted_run_s)} in all, cost {plan.predicted_cost:.3g}; "
        f"needs {format_bytes(plan.memory.required_bytes)} of {format_bytes(plan.gpu_memory_bytes)}, "
        f"peak at {plan.memory.at}, most of it {tightest.name}."
    )
    return Reason(code=ReasonCode.BEST_PLAN, detail=detail)


def _later_reason(plan: ResourcePlan, best: ResourcePlan, *, by_cost: bool) -> Reason:
    time_ratio = plan.predicted_run_s / best.predicted_run_s
    if by_cost and plan.predicted_cost > best.predicted_cost:
        dearer = plan.predicted_cost - best.predicted_cost
        detail = f"Costs {dearer:.3g} more than {best.plan_id}, {_times(time_ratio)}."
        return Reason(code=ReasonCode.COSTLIER_PLAN, detail=detail)
    detail = (
        f"Takes {_times(time_ratio)} as {best.plan_id} "
        f"({format_duration(plan.step_time_s)} a step), needs {format_bytes(plan.memory.required_bytes)}."
    )
    return Reason(code=ReasonCode.SLOWER_PLAN, detail=detail)


def _times(ratio: float) -> str:
    return "as long" if abs(ratio - 1) < 0.005 else f"{ratio:.2f} times as long"
