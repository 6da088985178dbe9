"""What follows after an attempt, and which plans climb the memory-pressure ladder.

The ladder, in order, never the same plan twice, the global batch kept:
(a) smaller micro-batch with more accumulation, (b) activation checkpointing, (c) a higher ZeRO
stage, then offload, (d) another count or type of GPU. A rung is taken when one of its plans has
room for the memory that the prediction did not know of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from frenzy.core.lifecycle.disruptions import LOSS_REASONS, is_hopeless, lost_nodes, not_before_s
from frenzy.core.lifecycle.moves import MOVE_REASONS, measured_extra_bytes
from frenzy.core.runs.ledger import Attempt, JobState, NextAttempt, RunRecord
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.failure_classes import NextStep, codes_of
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, MemorySource, PlanShape, ResourcePlan
from frenzy.core.values.run_files import REASON_BY_EXIT, ExitCode
from frenzy.core.values.units import counted, format_bytes

MEMORY_REASONS: Final = frozenset(
    {
        ReasonCode.MEMORY_PRESSURE_FORECAST,
        ReasonCode.MEMORY_PRESSURE_USAGE,
        ReasonCode.ALLOCATOR_RETRIES,
        ReasonCode.CUDA_OUT_OF_MEMORY,
        ReasonCode.BUDGET_EXCEEDED,
    }
)
# A stop for one of these is not asked for at a checkpoint: the workers are ended.
KILLING_REASONS: Final = frozenset({ReasonCode.WORKER_HUNG, ReasonCode.LAUNCH_FAILED, ReasonCode.CANCELLED_BY_USER})
OUT_OF_MEMORY: Final = frozenset({ReasonCode.CUDA_OUT_OF_MEMORY, ReasonCode.BUDGET_EXCEEDED})
# How a training ends well.
DONE_REASONS: Final = frozenset({ReasonCode.COMPLETED, ReasonCode.STOPPED_EARLY})
_FATAL_REASONS: Final = codes_of(NextStep.USER) | {
    ReasonCode.BAD_CONFIG_OR_DATA,
    ReasonCode.CANCELLED_BY_USER,
    ReasonCode.CONTAINER_CONFIG_ERROR,
    ReasonCode.DATA_NOT_PREPARED,
    ReasonCode.NODE_LIMITS_TOO_LOW,
}
# What workers are asked to stop for.
_STOP_REASONS: Final = MEMORY_REASONS | MOVE_REASONS | {ReasonCode.REHEARSED}
# The user did nothing wrong and nothing was learned: the same plan may be tried again.
_SAME_CRASH_LIMIT: Final = 2
# A plan whose room grew by less than this share of the card would soon be under pressure again.
_LEAST_GAIN_SHARE: Final = 0.03


class Rung(IntEnum):
    """Steps of the ladder, in the order they are tried."""

    MICRO_BATCH = 1
    CHECKPOINTING = 2
    ZERO_STAGE = 3
    OTHER_GPUS = 4


_NAME_OF_RUNG: Final[Mapping[Rung, str]] = {
    Rung.MICRO_BATCH: "a smaller micro-batch",
    Rung.CHECKPOINTING: "activation checkpointing",
    Rung.ZERO_STAGE: "a higher ZeRO stage or offload",
    Rung.OTHER_GPUS: "another count or type of GPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The plans of the lowest rung that helps, in order; empty when none does."""

    rung: Rung | None
    plans: tuple[ResourcePlan, ...]


def classify(result: AttemptResult | None, stop_reason: Reason | None, known: Reason | None) -> Reason:
    """Why an attempt ended, from the workers' account, what was asked of them, and what is known."""
    if result is None:
        return known or stop_reason or Reason(code=ReasonCode.WORKERS_LOST)
    if result.exit_code == ExitCode.DONE and result.stopped_early:
        return Reason(code=ReasonCode.STOPPED_EARLY, detail=result.detail)
    if result.exit_code == ExitCode.DONE:
        return Reason(code=ReasonCode.COMPLETED, detail=f"Reached step {result.last_step}. {result.detail}".rstrip())
    if result.exit_code == ExitCode.CHECKPOINTED:  # a cluster that takes a node away asks for it, too
        return stop_reason or known or Reason(code=ReasonCode.CHECKPOINTED_ON_REQUEST, detail=result.detail)
    if stop_reason is not None and stop_reason.code in KILLING_REASONS:
        return stop_reason
    if known is not None:
        return known
    if result.exit_code > 128 and stop_reason is not None and stop_reason.code in _STOP_REASONS:
        return stop_reason  # they did not stop in time; what they were to stop for holds all the same
    return Reason(code=_code_of_exit(result.exit_code), detail=result.detail)


def _code_of_exit(exit_code: int) -> ReasonCode:
    if exit_code in REASON_BY_EXIT:
        return REASON_BY_EXIT[exit_code]
    return ReasonCode.WORKER_KILLED if exit_code > 128 else ReasonCode.WORKER_CRASHED


def follow_up(run: RunRecord, attempts: tuple[Attempt, ...]) -> NextAttempt | Reason:
    """What follows the last, ended attempt: the next one, or the reason why there is none.

    A Reason in DONE_REASONS means success; any other means the run fails with it.
    """
    last = attempts[-1]
    outcome = last.outcome or Reason(code=ReasonCode.WORKERS_LOST)
    if outcome.code in DONE_REASONS | _FATAL_REASONS:
        return outcome
    if outcome.code in MOVE_REASONS or outcome.code is ReasonCode.REHEARSED:
        return _next_attempt(attempts, outcome)
    if outcome.code in LOSS_REASONS:
        return outcome if is_hopeless(attempts) else _next_attempt(attempts, outcome)
    if run.num_reschedules >= run.job.on_memory_pressure.max_reschedules:
        return Reason(
            code=ReasonCode.RESCHEDULE_BUDGET_SPENT,
            detail=(
                f"The run was moved {counted(run.num_reschedules, 'time')} and ended again: {outcome.sentence}"
                if run.num_reschedules
                else f"on_memory_pressure.max_reschedules is 0, and the attempt ended: {outcome.sentence}"
            ),
            remedy="Raise on_memory_pressure.max_reschedules, or look at the reason.",
        )
    if outcome.code not in MEMORY_REASONS and _same_crash_again(attempts):
        return outcome
    return _next_attempt(attempts, outcome)


def _same_crash_again(attempts: tuple[Attempt, ...]) -> bool:
    """The last attempts all ended for the same reason and none got further than the one before."""
    tail = attempts[-_SAME_CRASH_LIMIT - 1 :]
    if len(tail) <= _SAME_CRASH_LIMIT:
        return False
    codes = {each.outcome.code for each in tail if each.outcome is not None}
    return len(codes) == 1 and tail[-1].last_step <= tail[0].last_step


def _next_attempt(attempts: tuple[Attempt, ...], outcome: Reason) -> NextAttempt:
    last = attempts[-1]
    memory, moved = outcome.code in MEMORY_REASONS, outcome.code in MOVE_REASONS
    extra, forecast = extra_bytes(last, outcome) if memory else (measured_extra_bytes(last) if moved else 0, 0)
    known_extra = max([extra, *(each.next_attempt.extra_bytes_per_gpu for each in attempts)])
    if moved:  # nothing is forgotten
        forecast = max(each.next_attempt.forecast_extra_bytes_per_gpu for each in attempts)
    return NextAttempt(
        attempt=last.attempt + 1,
        reason=outcome,
        previous=last.plan,
        preferred=last.move_to.plan.shape if moved and last.move_to is not None else None,
        excluded_shapes=excluded_shapes(attempts),
        excluded_nodes=lost_nodes(attempts),
        extra_bytes_per_gpu=known_extra,
        forecast_extra_bytes_per_gpu=max(known_extra, forecast),
        checkpoint_step=last.next_attempt.checkpoint_step if last.checkpoint_step is None else last.checkpoint_step,
        not_before_s=not_before_s(attempts),
    )


def extra_bytes(attempt: Attempt, outcome: Reason) -> tuple[int, int]:
    """(seen, forecast) memory on each GPU beyond ``attempt``'s prediction.

    An out-of-memory is a censored measurement: the true need was above the card. If memory grew
    before it, growth is taken to go on at its pace until the run's last step. Where plans are bounds
    from measured runs, the attempt is one of these itself.
    """
    seen, forecast = attempt.extra_bytes_per_gpu, attempt.forecast_extra_bytes_per_gpu
    if outcome.code in OUT_OF_MEMORY and not _is_measured(attempt.plan):
        seen = max(seen, room_bytes(attempt.plan))
        forecast = max(forecast, seen + _growth_to_come(attempt))
    return seen, max(seen, forecast)


def _growth_to_come(attempt: Attempt) -> int:
    """Bytes that the growth which was measured would add until the last step; 0 if none was seen."""
    grown = (attempt.measured_peak_bytes or 0) - (attempt.explained_peak_bytes or 0)
    if attempt.growth_step is None or attempt.result is None or grown <= 0:
        return 0
    steps = max(1, attempt.last_step - attempt.growth_step)
    return round(grown / steps * max(0, attempt.result.total_steps - attempt.last_step))


def predicted_anew(following: NextAttempt, memory: MemoryPrediction, coefficients: str) -> NextAttempt:
    """``following`` as if ``memory`` had been predicted of the plan before: what was seen beyond it changes with it.

    coefficients: a sentence that says by which it is predicted.
    """
    if following.previous is None:
        return following
    more = memory.peak_allocated_bytes - following.previous.memory.peak_allocated_bytes
    return replace(
        following,
        previous=replace(following.previous, memory=memory),
        extra_bytes_per_gpu=_beyond(following.extra_bytes_per_gpu, more),
        forecast_extra_bytes_per_gpu=_beyond(following.forecast_extra_bytes_per_gpu, more),
        predicted_with=coefficients,
    )


def _beyond(extra_bytes: int, more_predicted: int) -> int:
    """Where nothing was seen beyond the prediction, nobody knows how far below it the truth was."""
    return max(0, extra_bytes - more_predicted) if extra_bytes else 0


def excluded_shapes(attempts: Iterable[Attempt]) -> tuple[PlanShape, ...]:
    """Plans that ran out of memory, or were about to: never chosen again by this run."""
    return tuple(
        each.plan.shape for each in attempts if each.outcome is not None and each.outcome.code in MEMORY_REASONS
    )


def exceeded_plan(next_attempt: NextAttempt, plans: Iterable[ResourcePlan]) -> bool:
    """Whether the run gave up GPUs because of its memory, and ``plans`` are all for others."""
    given_up = {(shape.gpu_type, shape.num_gpus) for shape in next_attempt.excluded_shapes}
    return bool(given_up) and all((plan.gpu_type, plan.num_gpus) not in given_up for plan in plans)


def room_bytes(plan: ResourcePlan) -> int:
    """Memory of the card that the prediction leaves free."""
    return plan.gpu_memory_bytes - plan.memory.peak_allocated_bytes


def rung_of(previous: ResourcePlan, plan: ResourcePlan) -> Rung:
    """The ladder's step that leads from ``previous`` to ``plan``: the highest one that it takes."""
    if (plan.gpu_type, plan.num_gpus, plan.tp) != (previous.gpu_type, previous.num_gpus, previous.tp):
        return Rung.OTHER_GPUS
    if (plan.zero_stage, plan.offload_optimizer) != (previous.zero_stage, previous.offload_optimizer):
        return Rung.ZERO_STAGE
    if plan.activation_checkpointing != previous.activation_checkpointing:
        return Rung.CHECKPOINTING
    return Rung.MICRO_BATCH


def memory_move(following: NextAttempt, plan: ResourcePlan) -> Reason | None:
    """Why ``plan`` follows a plan that ran short of memory: the rung of the ladder, and the forecast. None for an
    attempt that follows nothing, or something else.
    """
    previous = following.previous
    if previous is None or following.reason.code not in MEMORY_REASONS:
        return None
    rung = rung_of(previous, plan)
    seen, forecast = following.extra_bytes_per_gpu, following.forecast_extra_bytes_per_gpu
    growth = f"{format_bytes(seen)} more than predicted were seen on each GPU"
    if forecast > seen:
        growth = f"{growth}, {format_bytes(forecast)} are forecast"
    return Reason(
        code=ReasonCode.MOVED_FOR_MEMORY,
        detail=(
            f"{plan.plan_id} follows {previous.plan_id} after {following.reason.code}, by {_NAME_OF_RUNG[rung]} "
            f"(rung {rung:d} of {len(Rung)}): {growth}; it has room for {format_bytes(room_bytes(plan))}."
            f" {following.predicted_with}"
        ).rstrip(),
    )


def ladder(candidates: tuple[Candidate, ...], next_attempt: NextAttempt) -> Ladder:
    """The plans to try next, after memory ran short, among ``candidates``.

    First with room for the growth that is forecast, then for what was seen; always with clearly
    more room than the previous plan had.
    """
    previous = next_attempt.previous
    feasible = _not_excluded(candidates, next_attempt)
    if next_attempt.reason.code in MOVE_REASONS:
        return Ladder(
            rung=None, plans=preferred_first(plans_with_headroom(candidates, next_attempt), next_attempt.preferred)
        )
    if previous is None or next_attempt.reason.code not in MEMORY_REASONS:
        return Ladder(rung=None, plans=feasible)
    if next_attempt.reason.code in OUT_OF_MEMORY and _is_measured(previous):
        return _lowest_rung(previous, feasible)  # the candidates are what is left after its measurement
    least_room = room_bytes(previous) + round(_LEAST_GAIN_SHARE * previous.gpu_memory_bytes)
    roomier = tuple(plan for plan in feasible if room_bytes(plan) > least_room)
    for extra in (next_attempt.forecast_extra_bytes_per_gpu, next_attempt.extra_bytes_per_gpu):
        found = _lowest_rung(previous, tuple(plan for plan in roomier if room_bytes(plan) > extra))
        if found.plans:
            return found
    return Ladder(rung=None, plans=())


def _is_measured(plan: ResourcePlan) -> bool:
    return plan.memory.source in (MemorySource.LEARNT, MemorySource.REHEARSAL)


def _not_excluded(candidates: Iterable[Candidate], next_attempt: NextAttempt) -> tuple[ResourcePlan, ...]:
    excluded = next_attempt.excluded_shapes
    plans = tuple(each.plan for each in candidates if each.feasible and each.plan.shape not in excluded)
    if next_attempt.previous is None or next_attempt.reason.code is not ReasonCode.GPU_NOT_SUPPORTED:
        return plans
    # Another node of the type may have another image, but only where there is no other type.
    return tuple(plan for plan in plans if plan.gpu_type != next_attempt.previous.gpu_type) or plans


def plans_with_headroom(candidates: Iterable[Candidate], next_attempt: NextAttempt) -> tuple[ResourcePlan, ...]:
    """Plans with room for the growth that was forecast for the run; if there are none, for what was seen."""
    feasible = _not_excluded(candidates, next_attempt)
    roomy = tuple(plan for plan in feasible if room_bytes(plan) > next_attempt.forecast_extra_bytes_per_gpu)
    return roomy or feasible


def preferred_first(plans: tuple[ResourcePlan, ...], preferred: PlanShape | None) -> tuple[ResourcePlan, ...]:
    """``plans`` with the preferred one in front; if it is gone, the first on as many GPUs of its type."""
    if preferred is None:
        return plans
    return tuple(sorted(plans, key=lambda plan: (plan.shape != preferred, not is_as_wide(plan, preferred))))


def is_as_wide(plan: ResourcePlan, shape: PlanShape) -> bool:
    """Whether ``plan`` takes the same GPUs as ``shape``."""
    return (plan.gpu_type, plan.num_gpus) == (shape.gpu_type, shape.num_gpus)


def _lowest_rung(previous: ResourcePlan, plans: tuple[ResourcePlan, ...]) -> Ladder:
    for rung in Rung:
        on_rung = tuple(plan for plan in plans if rung_of(previous, plan) is rung and _climbs(previous, plan, rung))
        if on_rung:
            return Ladder(rung=rung, plans=on_rung)
    return Ladder(rung=None, plans=())


def _climbs(previous: ResourcePlan, plan: ResourcePlan, rung: Rung) -> bool:
    """Whether ``plan`` goes up: smaller micro-batch, checkpointing switched on, higher stage."""
    if rung is Rung.MICRO_BATCH:
        return plan.micro_batch_size < previous.micro_batch_size
    if rung is Rung.CHECKPOINTING:
        return plan.activation_checkpointing
    if rung is Rung.ZERO_STAGE:
        return (plan.zero_stage, plan.offload_optimizer) > (previous.zero_stage, previous.offload_optimizer)
    return True


def final_state(outcome: Reason) -> JobState:
    """The state of a run that ends with ``outcome``."""
    by_code = {
        **dict.fromkeys(DONE_REASONS, JobState.SUCCEEDED),
        ReasonCode.CANCELLED_BY_USER: JobState.CANCELLED,
        ReasonCode.HOST_OUT_OF_MEMORY: JobState.FAILED_HOST_OOM,
        ReasonCode.LAUNCH_FAILED: JobState.FAILED_SETUP,
        ReasonCode.DATA_NOT_PREPARED: JobState.FAILED_SETUP,
        ReasonCode.API_UNREACHABLE: JobState.FAILED_SETUP,
        ReasonCode.LEASE_EXPIRED: JobState.FAILED_SETUP,
        ReasonCode.IMAGE_PULL_FAILED: JobState.FAILED_SETUP,
        ReasonCode.CONTAINER_CONFIG_ERROR: JobState.FAILED_SETUP,
        ReasonCode.INIT_CONTAINER_FAILED: JobState.FAILED_SETUP,
        **dict.fromkeys(
            (
                ReasonCode.DRIVER_TOO_OLD,
                ReasonCode.GPU_NOT_SUPPORTED,
                ReasonCode.GPU_UNAVAILABLE,
                ReasonCode.NODE_LIMITS_TOO_LOW,
            ),
            JobState.FAILED_SETUP,
        ),
        ReasonCode.POD_UNSCHEDULABLE: JobState.FAILED_NO_RESOURCE,
        ReasonCode.NEVER_FITS: JobState.FAILED_NO_RESOURCE,
        ReasonCode.NO_OTHER_PLAN: JobState.FAILED_OOM,
        **dict.fromkeys(MEMORY_REASONS, JobState.FAILED_OOM),
    }
    return by_code.get(outcome.code, JobState.FAILED)
