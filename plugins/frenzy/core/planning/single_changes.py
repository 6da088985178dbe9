"""Each single change after which a job fits: what a person may choose from, beside the one remedy (``plan_remedies``).

Asked of a job that does not fit cards of one type, or of one plan on them that ran out of memory, whatever was
predicted of it. A plan can also change itself: its ZeRO stage, micro-batch, checkpointing, offload, tensor parallel
degree and number of GPUs. Each kind of change is tried alone, by as little as suffices, and planned to verify it. Where
no number of GPUs alone would do, what else has to differ is told with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from frenzy.core.planning.grid import ZERO_STAGES, divisors, tensor_parallel_degrees
from frenzy.core.planning.job_remedies import WAITING_FOR_CHECKPOINTS, Effect, job_changes
from frenzy.core.planning.plan_remedies import Budget
from frenzy.core.planning.remedy_changes import Change, Situation, Solve, feasible_plans
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.resource_remedies import (
    RESOURCE_CHANGES,
    larger_gpu,
    more_gpus,
    more_host_memory,
    with_gpus,
)
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.gpu_catalogue import cards_of_a_node
from frenzy.core.values.resource_plan import Candidate, PlanShape, ResourcePlan

# Nobody takes more than a usual server's GPUs, or so many times as many, because a job ran out of memory.
_SERVER: Final = 8
_MOST_TIMES: Final = 4
# More GPUs are to help. Beyond a node each micro-batch may wait for the network longer than it computes.
_MUCH_SLOWER: Final = 2.0
_GPUS: Final = "GPUs"
_STATES: Final = "optimizer states"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleChange:
    """One change, and the plan that then comes first.

    changes: the first is the one that is named; more where a larger card, or offload, takes something of the host, or
    more GPUs have to be used in another way. leaves_node: whether the plan is wider than a node.
    """

    changes: tuple[Change, ...]
    effect: Effect
    plan: ResourcePlan
    leaves_node: bool


def single_changes(start: Situation, candidates: tuple[Candidate, ...], solve: Solve) -> tuple[SingleChange, ...]:
    """Those after which ``solve`` finds a plan, by their effect on the result, then by predicted time.

    start: on one GPU type. candidates: what ``solve`` finds there, no feasible ones. Where the request looks at one
    plan only, that plan's own changes count, too. A search that grows too large ends with what it has.
    """
    budget = Budget(solve)
    budget.learn(start.request, start.cluster, candidates)
    found = [
        SingleChange(
            changes=after.changes,
            effect=effect,
            plan=plans[0],
            leaves_node=plans[0].num_gpus > max(node.num_gpus for node in after.cluster.nodes),
        )
        for effect, after in _tried(start, candidates, budget)
        if (plans := feasible_plans(budget(after.request, after.cluster)))
    ]
    return tuple(sorted(found, key=lambda each: (each.effect, each.plan.predicted_run_s)))


def _tried(start: Situation, candidates: Sequence[Candidate], solve: Solve) -> Iterator[tuple[Effect, Situation]]:
    """Each kind of change by as little as seems to suffice; its search for shorter sequences takes longest."""
    of_plan = bool(start.request.only_shapes)
    for failed in candidates if of_plan else ():
        yield from _of_plan(start, failed.plan, solve)
    for each in job_changes(start.request, candidates, start.cluster):
        lifted = each.lift(start)
        if feasible_plans(solve(lifted.request, lifted.cluster)):
            yield each.effect, each.tighten(lifted, start, solve)
    for change, effect in RESOURCE_CHANGES.items():
        if change is more_gpus and of_plan:  # one of the plan's own changes
            continue
        if change is larger_gpu and start.request.extra_bytes_per_gpu:  # how much was lacking is a lower bound
            continue
        after = (_more_cards if change is more_gpus else change)(start, solve)
        if after is not None:
            yield effect, after


def _more_cards(start: Situation, solve: Solve) -> Situation | None:
    """The fewest cards more, beside those that are there. A doubling at a time finds out how many."""
    name, before = start.cluster.gpu_types[0].name, start.cluster.num_gpus_by_type[start.cluster.gpu_types[0].name]
    for doublings in range(1, _most_gpus(before).bit_length()):
        num_gpus = min(before << doublings, _most_gpus(before))
        plans = feasible_plans(solve(start.request, _with_cards(start.cluster, name, num_gpus)))
        wider = [plan.shape for plan in plans if plan.num_gpus > before]  # others need its host memory alone
        if wider:
            least = min(shape.num_gpus for shape in wider)
            narrowest = tuple(shape for shape in wider if shape.num_gpus == least)
            asked = replace(start, request=replace(start.request, only_shapes=narrowest))
            return asked.on(_with_cards(start.cluster, name, least), Change(_GPUS, str(before), str(least)))
    return None


def _most_gpus(before: int) -> int:
    return max(_SERVER, _MOST_TIMES * before)


def _of_plan(start: Situation, failed: ResourcePlan, solve: Solve) -> Iterator[tuple[Effect, Situation]]:
    enough: set[Change] = set()
    for name, known in _other_shapes(start.request, failed.shape, start.cluster).items():
        shapes = [each for each in known if each != failed.shape]
        if not shapes:
            continue
        after = _first_that_fits(start, failed, name, shapes, solve)
        if after is None and name == _STATES:
            after = _with_room_on_host(_asking(start, failed.shape, name, shapes[0]), solve)
        # what alone would do needs no more GPUs beside it
        if after is not None and not enough.intersection(after.changes):
            enough |= {*after.changes} if len(after.changes) == 1 else set()
            yield Effect.SAME_RESULT if after.cluster is start.cluster else Effect.HARDWARE, after


def _with_room_on_host(offloaded: Situation, solve: Solve) -> Situation | None:
    """What offload takes where it fits the cards alone: no copy of the checkpoint on the host, else more memory."""
    found = solve(offloaded.request, offloaded.cluster)
    if not any(each.reason.code is ReasonCode.INSUFFICIENT_HOST_MEMORY for each in found):
        return None
    if offloaded.request.job.checkpoint.background:
        lifted = WAITING_FOR_CHECKPOINTS.lift(offloaded)
        if feasible_plans(solve(lifted.request, lifted.cluster)):
            return WAITING_FOR_CHECKPOINTS.tighten(lifted, offloaded, solve)
    return more_host_memory(offloaded, solve)


def _other_shapes(request: PlanRequest, failed: PlanShape, cluster: Cluster) -> dict[str, list[PlanShape]]:
    """Of each kind of change the shapes that it leads to, the least change first; perhaps ``failed`` itself."""
    size, degrees = failed.micro_batch_size, tensor_parallel_degrees(request.shape, failed.num_gpus)
    return {
        # a lower stage takes more memory, but may be run where this one is not
        "ZeRO stage": [
            replace(failed, zero_stage=each) for each in sorted(ZERO_STAGES, key=lambda each: each < failed.zero_stage)
        ],
        "micro-batch": [replace(failed, micro_batch_size=each) for each in reversed(divisors(size, size - 1))],
        "activation checkpointing": [replace(failed, activation_checkpointing=True)],
        _STATES: [replace(failed, offload_optimizer=True)],
        "tensor parallel": [replace(failed, tp=tp) for tp in degrees if tp > failed.tp and failed.num_gpus % tp == 0],
        _GPUS: _wider(request, failed, cluster),
    }


def _wider(request: PlanRequest, failed: PlanShape, cluster: Cluster) -> list[PlanShape]:
    """Those that are used like ``failed`` first, then the narrowest. ZeRO has no stage of its own on a single rank."""
    stages = (failed.zero_stage,) if failed.num_gpus > failed.tp else ZERO_STAGES
    widest = max(
        cards_of_a_node(failed.gpu_type), *(node.num_gpus for node in cluster.nodes if node.gpu_type == failed.gpu_type)
    )
    found = [
        replace(
            failed,
            num_gpus=dp * tp,
            tp=tp,
            zero_stage=stage,
            micro_batch_size=divisors(request.global_batch_size // dp, failed.micro_batch_size)[-1],
        )
        for tp in tensor_parallel_degrees(request.shape, widest)
        for dp in divisors(request.global_batch_size, _most_gpus(failed.num_gpus) // tp)
        for stage in stages
        if tp >= failed.tp and dp * tp > failed.num_gpus
    ]
    return sorted(found, key=lambda each: (len(_changes(failed, each, _GPUS)), each.num_gpus, each.tp, each.zero_stage))


def _first_that_fits(
    start: Situation, failed: ResourcePlan, name: str, shapes: Sequence[PlanShape], solve: Solve
) -> Situation | None:
    """One that is much slower than ``failed`` only where all are."""
    asked = replace(start.request, only_shapes=tuple(shapes))
    enough = _with_cards(start.cluster, failed.gpu_type, max(each.num_gpus for each in shapes))
    step_s = {each.shape: each.step_time_s for each in feasible_plans(solve(asked, enough))}
    fitting = [each for each in shapes if each in step_s]
    quick = [each for each in fitting if step_s[each] <= _MUCH_SLOWER * failed.step_time_s]
    return _asking(start, failed.shape, name, (quick or fitting)[0]) if fitting else None


def _asking(start: Situation, failed: PlanShape, name: str, shape: PlanShape) -> Situation:
    """For ``shape`` in place of ``failed``, on as many GPUs as it needs."""
    wider = _with_cards(start.cluster, failed.gpu_type, shape.num_gpus)
    told = (*start.changes, *_changes(failed, shape, name))
    return Situation(replace(start.request, only_shapes=(shape,)), wider, told)


def _with_cards(cluster: Cluster, gpu_type: str, wanted: int) -> Cluster:
    """With at least so many GPUs: in the widest node as far as a server takes them, then in others."""
    missing = wanted - cluster.num_gpus_by_type[gpu_type]
    if missing <= 0:
        return cluster
    widest = max((node for node in cluster.nodes if node.gpu_type == gpu_type), key=lambda node: node.num_gpus)
    width = max(widest.num_gpus, min(widest.num_gpus + missing, cards_of_a_node(gpu_type)))
    host_bytes = widest.host_memory_bytes * width // widest.num_gpus
    filled = replace(widest, num_gpus=width, host_memory_bytes=host_bytes)
    there = replace(cluster, nodes=tuple(filled if node is widest else node for node in cluster.nodes))
    return with_gpus(there, gpu_type, wanted)


def _changes(before: PlanShape, after: PlanShape, first: str) -> tuple[Change, ...]:
    """Of each setting that differs, that called ``first`` before others."""
    was, will_be = _settings(before), _settings(after)
    names = dict.fromkeys((first, *was))
    return tuple(Change(each, was[each], will_be[each]) for each in names if was[each] != will_be[each])


def _settings(shape: PlanShape) -> dict[str, str]:
    return {
        "ZeRO stage": str(shape.zero_stage),
        "micro-batch": str(shape.micro_batch_size),
        "activation checkpointing": "on" if shape.activation_checkpointing else "off",
        _STATES: "in host memory" if shape.offload_optimizer else "on the GPUs",
        "tensor parallel": str(shape.tp),
        _GPUS: str(shape.num_gpus),
    }
