"""The policy ``closed-form``: every plan through the memory and time models, ranked.

Memory does not depend on the GPU type, only on its kind and on the attention that it has kernels for, so one
grid is predicted once for all types that are alike, and compared with each type's capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from frenzy.core.memory.activation_coefficients import Attention
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.closed_form import (
    Array,
    Integers,
    PlanRow,
    Workload,
    activations_at_loss_bytes,
    predict_memory,
)
from frenzy.core.memory.model_trace import ModelTrace
from frenzy.core.memory.residuals import NOTHING_LEARNED
from frenzy.core.planning.candidates import (
    Ranked,
    Refused,
    TypeFacts,
    gpu_facts,
    memory_refusal,
    refused_candidates,
)
from frenzy.core.planning.grid import GridLimits, divisors, grid_of, plan_grid, tensor_parallel_degrees
from frenzy.core.planning.honours import as_held, honoured
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.selection import PlanSelection, PredictedGrid, is_one_of
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import Checkpointing, Objective
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, MemorySource, ResourcePlan
from frenzy.core.values.units import format_bytes, format_duration
from frenzy.core.values.workload import Honour

# A plan this many times wider than the cluster is still looked at, to say what would help.
_BEYOND_CLUSTER: Final = 2


def closed_form_candidates(request: PlanRequest, cluster: Cluster, calibration: Calibration) -> tuple[Candidate, ...]:
    """Feasible plans by rank, then refused ones; raises PermanentError for an unsupported model."""
    of_types = selections(request, cluster, calibration)
    found = [verdict for each in of_types for verdict in _verdicts(each)]
    if not request.is_narrowed and not any(isinstance(each, Ranked) for each in found):
        # what would help may be a larger micro-batch that accumulates no gradients: it may need the least
        found += [
            verdict for each in selections(request, cluster, calibration, beyond=True) for verdict in _verdicts(each)
        ]
    feasible = sorted((each.plan for each in found if isinstance(each, Ranked)), key=plan_order(request))
    refused = [each for each in found if isinstance(each, Refused)]
    notes = [each.facts.attention_note for each in of_types if feasible and each.facts.gpu.name == feasible[0].gpu_type]
    beside = " ".join(filter(None, (*notes, coefficients_of(request, calibration), _network_of(of_types, calibration))))
    ranked = ranked_candidates(feasible, request, beside=beside)
    return (*ranked, *refused_candidates(refused, every=request.every_plan))


def selections(
    request: PlanRequest, cluster: Cluster, calibration: Calibration, *, beyond: bool = False
) -> tuple[PlanSelection, ...]:
    """All plans on each GPU type of ``cluster``, as arrays; raises PermanentError for an unsupported model.

    beyond: instead, those without accumulation whose activations alone are too much for every card.
    """
    facts = gpu_facts(request, cluster, calibration)
    alike = {
        key: _predict(request, [each for each in facts if _alike(each) == key], calibration, beyond=beyond)
        for key in dict.fromkeys(map(_alike, facts))
    }
    return tuple(PlanSelection(each, _of_type(each, alike[_alike(each)])) for each in facts)


def _alike(facts: TypeFacts) -> tuple[DeviceKind, bool]:
    """Equal for types whose plans have the same memory."""
    return facts.gpu.kind, facts.workload.whole_scores


def _network_of(of_types: tuple[PlanSelection, ...], calibration: Calibration) -> str:
    """Which network is assumed for plans that could run; those that lose by it need not be listed."""
    wider = [each for each in of_types if bool(np.any(each.runnable & (each.num_gpus > each.facts.gpus_per_node)))]
    return network_taken([each.facts.gpu for each in wider], calibration)


def network_taken(gpus: Sequence[GpuType], calibration: Calibration) -> str:
    """Which network between nodes of these GPUs is assumed, where the cluster file names none; else nothing."""
    unnamed = [each.name for each in gpus if each.kind is DeviceKind.CUDA and each.node_link_bytes_per_s is None]
    rate = 8e-9 * calibration.internode_bytes_per_s
    return (
        f"Nodes are taken to be joined by {rate:g} Gbit/s: node_link of {', '.join(unnamed)} is not given."
        if unnamed
        else ""
    )


def _predict(request: PlanRequest, facts: list[TypeFacts], calibration: Calibration, *, beyond: bool) -> PredictedGrid:
    workload = facts[0].workload
    max_tp = max(1, max(each.gpus_per_node for each in facts))
    most_bytes = max(each.gpu.memory_bytes for each in facts)
    script = request.job.workload
    limits = GridLimits(
        max_gpus=max(
            script.min_gpus if script is not None else 1, max(each.num_gpus for each in facts) * _BEYOND_CLUSTER
        ),
        max_tp=max_tp,
        max_micro_batch=_largest_micro_batch(request, workload, calibration, max_tp=max_tp, most_bytes=most_bytes),
        beyond=beyond,
        micro_batch=request.micro_batch_size,
        # a virtual GPU's memory is the host's: nothing would be gained
        offload=workload.kind is not DeviceKind.VIRTUAL,
    )
    grid = plan_grid(request.shape, request.global_batch_size, request.job.training.gradient_checkpointing, limits)
    grid = honoured(grid, request)
    if request.only_shapes:
        grid = grid.take(np.flatnonzero(is_one_of(grid, request.only_shapes)))
    memory = predict_memory(workload, as_held(grid, script), calibration)
    if memory is None:
        raise _unsupported(request, calibration, workload)
    return PredictedGrid.of(grid, memory, facts[0].launchable(grid))


def _largest_micro_batch(
    request: PlanRequest, workload: Workload, calibration: Calibration, *, max_tp: int, most_bytes: int
) -> int:
    """The largest micro-batch whose activations alone are not more than ``most_bytes``: larger ones never fit.

    What was learned from runs may scale the prediction down, hence no such bound then.
    """
    script = request.job.workload
    as_it_comes = script is not None and not script.takes(Honour.MICRO_BATCH)
    if request.is_narrowed or as_it_comes or request.residuals != NOTHING_LEARNED:
        return request.global_batch_size
    sizes = divisors(request.global_batch_size, request.global_batch_size)
    tp = tensor_parallel_degrees(request.shape, max_tp)[-1]
    checkpointing = request.job.training.gradient_checkpointing is not Checkpointing.OFF
    grid = grid_of([PlanRow(1, tp, 1, size, 1, checkpointing) for size in sizes])
    least = activations_at_loss_bytes(workload, grid, calibration)
    if least is None:
        raise _unsupported(request, calibration, workload)
    return int(grid.micro_batch[least <= most_bytes].max(initial=1))


def _of_type(facts: TypeFacts, predicted: PredictedGrid) -> PredictedGrid:
    """``predicted`` with what is this type's own, and what earlier runs on it taught."""
    request, gpu = facts.request, facts.gpu
    memory = predicted.memory.on_card(gpu.compute_capability)
    if memory is not predicted.memory:  # the order by what plans need stays
        predicted = replace(predicted, memory=memory, known={})
    factors = request.residuals.factors(gpu.kind, request.residual_family, gpu.name, predicted.grid)
    if factors is None:
        return predicted
    expected, bound = factors
    memory = replace(predicted.memory, expected_factor=expected, bound_factor=bound)
    return PredictedGrid.of(predicted.grid, memory, predicted.launchable)


def _unsupported(request: PlanRequest, calibration: Calibration, workload: Workload) -> PermanentError:
    if request.trace is not None and request.trace.problem is not None:
        return _untraced(request.shape.family, request.trace.problem)
    if request.trace is not None:
        return _traced_otherwise(request, request.trace)
    covered = sorted({each.family for each in calibration.activations})
    training, dropout = request.job.training, request.shape.has_dropout
    remedy = "Use a covered family and precision; frenzy marp trace SPEC tells what this one would take."
    for other in Attention:
        setting = replace(workload, attention=other).activation_setting(checkpointing=False)
        if calibration.activation(request.shape, setting) is not None:
            remedy = f"training.attention: {training.attention} -> {other}, which is covered."
            break
    return PermanentError(
        Reason(
            code=ReasonCode.MODEL_NOT_SUPPORTED,
            detail=(
                f"The memory model has no coefficients for {request.shape.family} in {training.precision}, "
                f"{training.attention} attention and {training.loss} loss{', with dropout' if dropout else ''}; "
                f"it covers {', '.join(covered) or 'nothing yet'}."
            ),
            remedy=remedy,
        )
    )


def _traced_otherwise(request: PlanRequest, trace: ModelTrace) -> PermanentError:
    """A trace holds for the precision and the attention that it was made in."""
    training = request.job.training
    known = ", ".join(dict.fromkeys(f"{each.precision} and {each.attention}" for each in trace.activations))
    detail = (
        f"This {request.shape.family} was traced in {known} attention; nothing is known of it in "
        f"{training.precision}, {training.attention} attention and {training.loss} loss."
    )
    remedy = "Plan the changed job as a new one, by New job or frenzy plan: then it is traced as it asks."
    return PermanentError(Reason(code=ReasonCode.MODEL_NOT_SUPPORTED, detail=detail, remedy=remedy))


def traced_with_another(trace: ModelTrace, release: str) -> PermanentError:
    """The refusal of a script with ``release`` of transformers, an older one than ``trace`` was made with."""
    detail = (
        f"This model was traced with transformers {trace.versions['transformers']}; the script runs {release}, which "
        "may keep more."
    )
    remedy = "Leave model out of the specification: the script's memory is then measured, and learnt."
    return PermanentError(Reason(code=ReasonCode.MODEL_NOT_SUPPORTED, detail=detail, remedy=remedy))


def _untraced(family: str, problem: str) -> PermanentError:
    detail = f"The memory model has no coefficients for {family}, and its module could not be traced: {problem}"
    remedy = "Use a covered family, or declare its memory as a script of your own (docs/bring-your-script.md)."
    return PermanentError(Reason(code=ReasonCode.MODEL_NOT_SUPPORTED, detail=detail, remedy=remedy))


def _verdicts(selection: PlanSelection) -> Iterator[Ranked | Refused]:
    """The plans of one type worth knowing of."""
    listed, explaining = selection.listed(), selection.explaining()
    for _, plan in _plans(selection, listed, selection.step_s[listed]):
        yield Ranked(plan)
    step_s = selection.facts.step_times_s(selection.grid.take(explaining))
    for row, plan in _plans(selection, explaining, step_s):
        yield Refused(plan, selection.facts.refusal(plan) or _lacking(selection, plan, row))


def _plans(selection: PlanSelection, rows: Integers, step_s: Array) -> Iterator[tuple[int, ResourcePlan]]:
    settings, host_bytes = selection.grid.take(rows).rows(), selection.host_bytes[rows].tolist()
    for row, setting, host, seconds in zip(rows.tolist(), settings, host_bytes, step_s.tolist(), strict=True):
        yield row, selection.facts.plan(setting, selection.predicted.prediction(row, host), seconds)


def _lacking(selection: PlanSelection, plan: ResourcePlan, row: int) -> Reason:
    facts = selection.facts
    if selection.fits_gpu[row]:
        return facts.host_refusal(plan)
    refusal = memory_refusal(plan, facts.request.extra_bytes_per_gpu)
    return replace(refusal, detail=f"{refusal.detail} {facts.attention_note}".rstrip())


def plan_order(request: PlanRequest) -> Callable[[ResourcePlan], tuple[float | str, ...]]:
    """The sort key of the job's objective; see the docstring of ``marp``."""

    def key(plan: ResourcePlan) -> tuple[float | str, ...]:
        time_and_cost = (plan.predicted_run_s, plan.num_gpus, *plan.cost_order)
        cost_and_time = (*plan.cost_order, plan.predicted_run_s, plan.num_gpus)
        own = (plan.tp, plan.zero_stage, plan.activation_checkpointing, -plan.micro_batch_size, plan.gpu_type)
        return (*(cost_and_time if request.job.objective is Objective.COST else time_and_cost), *own)

    return key


def ranked_candidates(plans: list[ResourcePlan], request: PlanRequest, *, beside: str = "") -> tuple[Candidate, ...]:
    """``plans``, which are in order, each with the reason for its place. beside: the end of the best one's."""
    if not plans:
        return ()
    best, by_cost = plans[0], request.job.objective is Objective.COST
    reason = _best_reason(best, len(plans), by_cost=by_cost)
    lacking = _without_price(plans) if by_cost and best.is_timed else ""
    reason = replace(reason, detail=" ".join(filter(None, (reason.detail, lacking, beside))))
    first = Candidate(plan=best, rank=1, reason=reason)
    rest = (
        Candidate(plan=plan, rank=rank, reason=_later_reason(plan, best, by_cost=by_cost))
        for rank, plan in enumerate(plans[1:], start=2)
    )
    return (first, *rest)


def coefficients_of(request: PlanRequest, calibration: Calibration) -> str:
    """Whose coefficients these are: of a trace, or of the release that a script is known to run; else nothing."""
    if request.trace is not None:
        return request.trace.sentence
    if request.script_release is None:
        return ""
    source = "workload.packages" if request.reported_release is None else "reported by the agent"
    coefficients = f"With the coefficients of transformers {calibration.versions.get('transformers')}"
    return f"{coefficients}, for the script's {request.script_release} ({source})."


def _best_reason(plan: ResourcePlan, num_plans: int, *, by_cost: bool) -> Reason:
    by_its_cost = "Cheapest" if plan.predicted_cost is not None else "Fewest GPU-hours"
    first = "First" if not plan.is_timed else by_its_cost if by_cost else "Fastest"
    what = f"{first} of {num_plans} plans that fit" if num_plans > 1 else f"{first} plan that fits"
    cost = "" if plan.predicted_cost is None else f", cost {plan.predicted_cost:.3g}"
    time = (
        f"{format_duration(plan.step_time_s)} a step{_learned_pace(plan)}, "
        f"{format_duration(plan.predicted_run_s)} in all{cost}"
    )
    detail = (
        f"{what}: {time if plan.is_timed else 'its time is not known'}; "
        f"needs {format_bytes(plan.memory.required_bytes)} of {format_bytes(plan.gpu_memory_bytes)}, "
        f"{_whence(plan.memory)}."
    )
    return Reason(code=ReasonCode.BEST_PLAN, detail=detail)


def _without_price(plans: list[ResourcePlan]) -> str:
    """What objective: cost does about GPU types whose price nobody gave; ``plans`` are in order."""
    lacking = dict.fromkeys(plan.gpu_type for plan in plans if plan.predicted_cost is None)
    if not lacking:
        return ""
    place = "Ranked by GPU-hours" if plans[0].predicted_cost is None else "Plans of unknown cost come last"
    return f"{place}: the cluster file has no price_per_hour of {', '.join(lacking)}."


def _learned_pace(plan: ResourcePlan) -> str:
    if plan.model_step_s is None:
        return ""
    ratio = plan.step_time_s / plan.model_step_s
    return f" ({ratio:.2f} times the model's {format_duration(plan.model_step_s)}, as earlier runs took)"


def _whence(memory: MemoryPrediction) -> str:
    """Where the numbers are from."""
    if memory.source is MemorySource.LEARNT:
        return f"{memory.terms[0].name}, with a margin of {memory.margin_share:.0%}"
    if memory.source is MemorySource.PREDICTED:
        return f"peak at {memory.at}, its largest term {memory.terms[0].name}"
    return memory.terms[0].name


def _later_reason(plan: ResourcePlan, best: ResourcePlan, *, by_cost: bool) -> Reason:
    time_ratio = plan.predicted_run_s / best.predicted_run_s
    needs = f"needs {format_bytes(plan.memory.required_bytes)}"
    if not plan.is_timed:
        return Reason(code=ReasonCode.SLOWER_PLAN, detail=f"After {best.plan_id}, by GPUs alone; {needs}.")
    if by_cost and plan.cost_order > best.cost_order:
        return _costlier_reason(plan, best, _times(time_ratio))
    detail = f"Takes {_times(time_ratio)} as {best.plan_id} ({format_duration(plan.step_time_s)} a step), {needs}."
    return Reason(code=ReasonCode.SLOWER_PLAN, detail=detail)


def _costlier_reason(plan: ResourcePlan, best: ResourcePlan, times: str) -> Reason:
    if best.predicted_cost is None:
        more = plan.gpu_hours / best.gpu_hours - 1.0
        detail = f"Takes {more:.0%} more GPU-hours than {best.plan_id}, {times}."
    elif plan.predicted_cost is None:
        detail = f"{plan.gpu_type} has no price_per_hour in the cluster file; what {best.plan_id} costs is known."
        return Reason(code=ReasonCode.NO_PRICE, detail=detail)
    else:
        dearer = plan.predicted_cost - best.predicted_cost
        detail = f"Costs {dearer:.3g} more than {best.plan_id}, {times}."
    return Reason(code=ReasonCode.COSTLIER_PLAN, detail=detail)


def _times(ratio: float) -> str:
    return "as long" if abs(ratio - 1) < 0.005 else f"{ratio:.2f} times as long"
