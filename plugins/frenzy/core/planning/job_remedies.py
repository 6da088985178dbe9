"""Changes of the job itself that may make a plan fit, each with how much it changes the result.

A change is lifted first (as if the limit were not there), and tightened when it is known to help:
to the least value that suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import total_ordering
from typing import Any, Final

from frenzy.core.planning.candidates import holds_scores
from frenzy.core.planning.remedy_changes import Change, Situation, Solve, feasible_plans
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.job import Checkpointing, ConstraintsSpec, LoraSpec, Precision, TrainingSpec
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.units import format_duration, round_up
from frenzy.core.values.workload import Honour

_Lift = Callable[[Situation], Situation]
_Tighten = Callable[[Situation, Situation, Solve], Situation]


@total_ordering
class Effect(Enum):
    """What a change does to the run, the least first.

    SAME_RESULT: the same numbers, computed in another way. LIMITS: the same run beyond the user's own limits.
    HARDWARE: the same run on more of what is there. APPROXIMATION: nearly the same numbers. LESS_CONTEXT:
    shorter sequences. OTHER_METHOD: adapters in place of all weights. COARSER: adapters over 4-bit weights.
    OTHER_HARDWARE: a card that may not exist. UNDOES: gives up what the user chose, to run at all.
    """

    SAME_RESULT = "same_result"
    LIMITS = "beyond_limits"
    HARDWARE = "more_hardware"
    APPROXIMATION = "approximation"
    LESS_CONTEXT = "less_context"
    OTHER_METHOD = "other_method"
    COARSER = "coarser"
    OTHER_HARDWARE = "larger_card"
    UNDOES = "undoes_a_choice"

    def __lt__(self, other: Effect) -> bool:
        return _ORDER.index(self) < _ORDER.index(other)


_ORDER: Final = tuple(Effect)


@dataclass(frozen=True, slots=True, eq=False)
class JobChange:
    """lift: makes it freely. tighten: from where it was lifted back to the least that suffices, and writes it down.

    may_harm: it may take more memory, so that the others are tried without it, too, and that it is the first of its
    effect to be left out.
    """

    lift: _Lift
    tighten: _Tighten
    effect: Effect = Effect.LIMITS
    may_harm: bool = False


def job_changes(request: PlanRequest, candidates: Sequence[Candidate], cluster: Cluster) -> tuple[JobChange, ...]:
    """The changes that could matter to ``candidates``, those that change the result least first."""
    limits, training = request.job.constraints, request.job.training
    found = list(_same_result(request, cluster))
    short_of_host = any(each.reason.code is ReasonCode.INSUFFICIENT_HOST_MEMORY for each in candidates)
    if request.job.checkpoint.background and short_of_host:
        found.append(WAITING_FOR_CHECKPOINTS)
    if any(each.reason.code is ReasonCode.PREDICTED_NOT_LAUNCHABLE for each in candidates):
        found += _launchable_choices(training)
    if any(each.reason.code is ReasonCode.INSUFFICIENT_GPU_MEMORY for each in candidates):
        found += [*_savings(request), *_half_precision(request, cluster)]
    if limits.max_gpus is not None:
        found.append(JobChange(lambda now: _limited(now, max_gpus=None), _least_gpus))
    found += [_one_more_type(name) for name in _types_left_out(limits, cluster)]
    if limits.max_cost is not None:
        found.append(JobChange(lambda now: _limited(now, max_cost=None), _least_cost))
    if request.seconds_to_deadline is not None:
        found.append(JobChange(_without_deadline, _earliest_deadline))
    return tuple(sorted(found, key=lambda each: (each.effect, each.may_harm)))


def _limited(now: Situation, **limits: Any) -> Situation:
    job = now.request.job
    changed = replace(job, constraints=replace(job.constraints, **limits))
    return replace(now, request=replace(now.request, job=changed))


def _same_result(request: PlanRequest, cluster: Cluster) -> Iterator[JobChange]:
    """Ways to compute the same numbers in less memory."""
    training = request.job.training
    kept, script = training.gradient_checkpointing, request.job.workload
    if script is not None and not script.takes(Honour.CHECKPOINTING):
        # its plans take what the specification says, and auto means off
        if kept is not Checkpointing.ON:
            yield _choice("training.gradient_checkpointing", kept, "on", gradient_checkpointing=Checkpointing.ON)
    elif kept is Checkpointing.OFF:
        yield _choice("training.gradient_checkpointing", "off", "auto", gradient_checkpointing=Checkpointing.AUTO)
    # torch's own attention takes less memory than the eager one, but perhaps not where it holds whole scores
    scores = any(holds_scores(request, each, attention="sdpa") for each in cluster.gpu_types)
    if training.attention == "eager":
        yield replace(_choice("training.attention", "eager", "sdpa", attention="sdpa"), may_harm=scores)
    if training.attention == "sdpa" and scores:
        yield replace(_choice("training.attention", "sdpa", "eager", attention="eager"), may_harm=True)
    if training.loss == "torch":
        yield _choice("training.loss", "torch", "fused", loss="fused")


def _waiting_for_checkpoints(now: Situation) -> Situation:
    """Without the copy of the states in host memory from which they are written while training goes on."""
    changed = replace(now.request.job, checkpoint=replace(now.request.job.checkpoint, background=False))
    return replace(now, request=replace(now.request, job=changed))


def _told_to_wait(now: Situation, _start: Situation, _solve: Solve) -> Situation:
    return now.asking(now.request, Change("checkpoint.background", "true", "false"))


WAITING_FOR_CHECKPOINTS: Final = JobChange(_waiting_for_checkpoints, _told_to_wait, Effect.SAME_RESULT)


def _savings(request: PlanRequest) -> Iterator[JobChange]:
    """Ways to train in less memory that change the result a little, or the method."""
    training = request.job.training
    lora = training.lora
    if training.optimizer == "adamw":
        yield _choice("training.optimizer", "adamw", "adamw-8bit", effect=Effect.APPROXIMATION, optimizer="adamw-8bit")
    if lora is None and request.job.starts_random:
        return
    if lora is None:
        yield _choice("training.lora", "none", _ADAPTERS, effect=Effect.OTHER_METHOD, lora=LoraSpec())
    if lora is None or lora.quantization == "none":
        coarser = replace(lora or LoraSpec(), quantization="nf4")
        before, after = ("none", f"{_ADAPTERS}, nf4") if lora is None else ("none", "nf4")
        name = "training.lora" if lora is None else "training.lora.quantization"
        yield _choice(name, before, after, effect=Effect.COARSER, lora=coarser)


def _half_precision(request: PlanRequest, cluster: Cluster) -> Iterator[JobChange]:
    """16 bits in place of 32, and fp16 where torch has attention kernels for no other of them, as before Ampere.

    Masters and states stay in fp32. Of a whole model a sum of gradients in fp32 may take more than activations save.
    """
    training = request.job.training
    before, fp16 = training.precision, Precision.FP16
    after: Precision = Precision.BF16 if before is Precision.FP32 else before
    if any(
        holds_scores(request, each, precision=after) and not holds_scores(request, each, precision=fp16)
        for each in cluster.gpu_types
    ):
        after = fp16
    if after is not before:
        change = _choice("training.precision", before, after, effect=Effect.APPROXIMATION, precision=after)
        yield replace(change, may_harm=before is Precision.FP32 and training.lora is None)


_ADAPTERS: Final = f"rank {LoraSpec().rank}"


def _choice(name: str, before: str, after: str, *, effect: Effect = Effect.SAME_RESULT, **training: Any) -> JobChange:
    """Another choice of how to train; there is nothing to tighten."""

    def lift(now: Situation) -> Situation:
        job = now.request.job
        changed = replace(job, training=replace(job.training, **training))
        return replace(now, request=replace(now.request, job=changed))

    return JobChange(lift, lambda now, _start, _solve: now.asking(now.request, Change(name, before, after)), effect)


def _launchable_choices(training: TrainingSpec) -> Iterator[JobChange]:
    """What the trainer runs everywhere, in place of what it may not run here."""
    if training.precision is Precision.FP16:
        yield _choice("training.precision", "fp16", "bf16", precision=Precision.BF16)
    for attention in ("sdpa", "eager"):
        if training.attention != attention and (training.attention, attention) != ("eager", "sdpa"):
            yield _choice(
                "training.attention", training.attention, attention, effect=_undoing(attention), attention=attention
            )
    if training.loss != "torch":
        yield _choice("training.loss", training.loss, "torch", effect=Effect.UNDOES, loss="torch")
    lora = training.lora
    if lora is not None and lora.quantization != "none":
        plain = replace(lora, quantization="none", double_quantization=False)
        yield _choice("training.lora.quantization", lora.quantization, "none", effect=Effect.UNDOES, lora=plain)


def _undoing(attention: str) -> Effect:
    """torch's own attention takes no more memory than FlashAttention; the eager one does."""
    return Effect.SAME_RESULT if attention == "sdpa" else Effect.UNDOES


# limits


def _least_gpus(now: Situation, start: Situation, solve: Solve) -> Situation:
    plans = feasible_plans(solve(now.request, now.cluster))
    before = start.request.job.constraints.max_gpus
    least = min((plan.num_gpus for plan in plans), default=before)
    tight = _limited(now, max_gpus=least)
    return tight.asking(tight.request, Change("constraints.max_gpus", str(before), str(least)))


def _types_left_out(limits: ConstraintsSpec, cluster: Cluster) -> list[str]:
    """Smaller cards first."""
    if not limits.gpu_types:
        return []
    by_size = sorted(cluster.gpu_types, key=lambda each: (each.memory_bytes, each.name))
    return [each.name for each in by_size if each.name not in limits.gpu_types]


def _one_more_type(name: str) -> JobChange:
    def lift(now: Situation) -> Situation:
        return _limited(now, gpu_types=(*now.request.job.constraints.gpu_types, name))

    def tighten(now: Situation, start: Situation, _solve: Solve) -> Situation:
        before = ", ".join(start.request.job.constraints.gpu_types)
        return now.asking(now.request, Change("constraints.gpu_types", before, f"{before}, {name}"))

    return JobChange(lift, tighten)


def _least_cost(now: Situation, start: Situation, solve: Solve) -> Situation:
    plans = feasible_plans(solve(now.request, now.cluster))
    before = start.request.job.constraints.max_cost or 0.0
    known = [plan.predicted_cost for plan in plans if plan.predicted_cost is not None]
    least = round_up(min(known)) if known else None  # without a price no limit can be kept
    tight = _limited(now, max_cost=least)
    return tight.asking(tight.request, Change("constraints.max_cost", f"{before:g}", f"{least:g}" if known else "none"))


def _without_deadline(now: Situation) -> Situation:
    free = _limited(now, deadline=None)
    return replace(free, request=replace(free.request, seconds_to_deadline=None))


def _later(time: str, later_s: float) -> str | None:
    """None for a time beyond the calendar."""
    try:
        return (datetime.fromisoformat(time) + timedelta(seconds=later_s)).isoformat()
    except OverflowError:
        return None


def _earliest_deadline(now: Situation, start: Situation, solve: Solve) -> Situation:
    plans = feasible_plans(solve(now.request, now.cluster))
    left_s = start.request.seconds_to_deadline or 0.0
    later_s = max(1.0, math.ceil(min((plan.predicted_run_s for plan in plans), default=left_s) - left_s))
    before = start.request.job.constraints.deadline
    after = None if before is None else _later(before, later_s)
    tight = _limited(now, deadline=after)
    moved = replace(tight.request, seconds_to_deadline=left_s + later_s)
    told = f"in {format_duration(max(0.0, left_s))}" if before is None else before
    return tight.asking(moved, Change("constraints.deadline", told, after or f"in {format_duration(left_s + later_s)}"))
