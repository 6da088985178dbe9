"""What ``frenzy demo`` checks, judged from what the ledger recorded. Pure; holds for any job and cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from frenzy.core.lifecycle.moves import MOVE_REASONS
from frenzy.core.lifecycle.reschedule import MEMORY_REASONS
from frenzy.core.runs.ledger import Attempt, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.units import counted, format_bytes, format_difference

ALLOWED_PREDICTION_ERROR: Final = 0.08
_OUT_OF_MEMORY: Final = frozenset({ReasonCode.CUDA_OUT_OF_MEMORY, ReasonCode.BUDGET_EXCEEDED})
# A job that leaves its GPUs for one of these goes on elsewhere, as one that moves for another job does.
LEFT_FOR_MEMORY: Final = MEMORY_REASONS - _OUT_OF_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check, whether it passed, and what shows it."""

    name: str
    passed: bool
    evidence: str


def judge(dag_state: str, view: RunView) -> tuple[Check, ...]:
    """The checks of one job's walk, in its order."""
    return (
        run_succeeded(dag_state, view),
        moved_in_time(view),
        workers_changed(view),
        batch_kept(view),
        training_resumed(view),
        memory_was_predicted(view),
    )


def judge_migrations(views: Sequence[RunView], num_held_gpus: int) -> tuple[Check, ...]:
    """The checks of jobs that move for one another."""
    return (
        all_succeeded("All jobs trained to their last step", *views),
        nothing_lost(MOVE_REASONS | LEFT_FOR_MEMORY, *views),
        batches_kept(*views),
        all_free(num_held_gpus),
    )


def run_succeeded(dag_state: str, view: RunView) -> Check:
    run = view.run
    passed = dag_state == "success" and run.state is JobState.SUCCEEDED
    last = view.attempts[-1].last_step if view.attempts else 0
    passed = passed and (run.total_steps is None or last >= run.total_steps)
    words = f"DAG run {dag_state}, job {run.state}, step {last} of {run.total_steps}"
    return Check(name="The run reached its last step", passed=passed, evidence=words)


def moved_in_time(view: RunView) -> Check:
    """With the forecast on: moved before any out-of-memory. With it off: ran out, and went on."""
    attempts = view.attempts
    codes = [each.outcome.code if each.outcome is not None else None for each in attempts]
    ran_out = [index for index, code in enumerate(codes) if code in _OUT_OF_MEMORY]
    if not view.run.job.on_memory_pressure.forecast:
        passed = bool(ran_out) and ran_out[0] < len(attempts) - 1
        words = f"out of memory in attempt {attempts[ran_out[0]].attempt}, then went on" if passed else "never ran out"
        return Check(name="It ran out of memory and recovered (the forecast is off)", passed=passed, evidence=words)
    moved = [index for index, each in enumerate(attempts) if _forecast_of(each)]
    passed = bool(moved) and (not ran_out or moved[0] < ran_out[0])
    words = _move_words(attempts[moved[0]]) if moved else f"no forecast move; attempts ended with {_listed(codes)}"
    return Check(name="A forecast moved it before memory ran out", passed=passed, evidence=words)


def workers_changed(view: RunView) -> Check:
    attempts = view.attempts
    pairs = list(zip(attempts, attempts[1:], strict=False))
    ids = [each.plan.plan_id for each in attempts]
    passed = any(before.plan.num_gpus != after.plan.num_gpus for before, after in pairs) and all(
        before.plan.shape != after.plan.shape for before, after in pairs
    )
    words = " -> ".join(
        f"{plan} ({counted(each.plan.num_gpus, 'worker')})" for plan, each in zip(ids, attempts, strict=True)
    )
    return Check(name="It went on with another plan on another number of workers", passed=passed, evidence=words)


def batch_kept(view: RunView) -> Check:
    wanted = view.run.job.training.global_batch_size
    planned = [each.plan.global_batch_size for each in view.attempts]
    passed = bool(planned) and set(planned) == {wanted}
    cuts = ", ".join(
        f"{each.plan.dp} x {each.plan.micro_batch_size} x {each.plan.accumulation_steps}" for each in view.attempts
    )
    return Check(
        name=f"The global batch stayed {wanted}", passed=passed, evidence=f"workers x micro-batch x steps: {cuts}"
    )


def training_resumed(view: RunView) -> Check:
    later = view.attempts[1:]
    resumed = [each.result.resumed_from_step if each.result is not None else None for each in later]
    passed = bool(later) and all(step is not None and step > 0 for step in resumed)
    words = ", ".join(f"attempt {each.attempt} from step {step}" for each, step in zip(later, resumed, strict=True))
    return Check(
        name="Each later attempt resumed from a checkpoint", passed=passed, evidence=words or "one attempt only"
    )


def memory_was_predicted(view: RunView) -> Check:
    """In each attempt that made steps: over those before growth nobody predicted set in."""
    peaks = {
        each.attempt: (each.plan.memory.peak_allocated_bytes, each.explained_peak_bytes)
        for each in view.attempts
        if each.explained_peak_bytes
    }
    blind = [each.attempt for each in view.attempts if each.last_step and each.attempt not in peaks]
    errors = [abs(measured / predicted - 1) for predicted, measured in peaks.values()]
    passed = bool(peaks) and not blind and max(errors) <= ALLOWED_PREDICTION_ERROR
    words = "; ".join(
        f"attempt {attempt}: {format_bytes(predicted)} predicted, {format_bytes(measured)} measured "
        f"({format_difference(measured, predicted)})"
        for attempt, (predicted, measured) in peaks.items()
    )
    name = f"Predicted and measured peak differ by at most {100 * ALLOWED_PREDICTION_ERROR:.0f} %"
    return Check(name=name, passed=passed, evidence=words or "nothing was measured")


def moved(view: RunView, *codes: ReasonCode) -> Iterator[tuple[Attempt, Attempt]]:
    """Each attempt that ended for one of ``codes``, with the one after it."""
    for before, after in zip(view.attempts, view.attempts[1:], strict=False):
        if before.outcome is not None and before.outcome.code in codes:
            yield before, after


def all_succeeded(name: str, *views: RunView) -> Check:
    states = [f"{view.run.job.name} {view.run.state}" for view in views]
    return Check(
        name=name, passed=all(view.run.state is JobState.SUCCEEDED for view in views), evidence=", ".join(states)
    )


def nothing_lost(codes: Collection[ReasonCode], *views: RunView) -> Check:
    """Each move resumed at the very step it stopped at."""
    pairs = [pair for view in views for pair in moved(view, *codes)]
    steps = [
        (before.result.last_step, after.result.resumed_from_step)
        for before, after in pairs
        if before.result is not None and after.result is not None
    ]
    passed = bool(pairs) and len(steps) == len(pairs) and all(stopped == resumed for stopped, resumed in steps)
    stops = ", ".join(f"stopped at {stopped}, resumed from {resumed}" for stopped, resumed in steps)
    return Check(name="No step was lost or repeated", passed=passed, evidence=stops)


def batches_kept(*views: RunView) -> Check:
    batches = [sorted({each.plan.global_batch_size for each in view.attempts}) for view in views]
    passed = all(found == [view.run.job.training.global_batch_size] for found, view in zip(batches, views, strict=True))
    return Check(
        name="The global batch stayed the same", passed=passed, evidence=", ".join(str(each) for each in batches)
    )


def all_free(num_held_gpus: int) -> Check:
    return Check(name="All GPUs are free at the end", passed=num_held_gpus == 0, evidence=f"{num_held_gpus} held")


def _forecast_of(attempt: Attempt) -> bool:
    reasons = (attempt.stop_reason, attempt.outcome)
    return any(each is not None and each.code is ReasonCode.MEMORY_PRESSURE_FORECAST for each in reasons)


def _move_words(attempt: Attempt) -> str:
    reason = attempt.stop_reason or attempt.outcome
    sentence = reason.sentence if reason is not None else ""
    return f"attempt {attempt.attempt} at step {attempt.last_step}: {sentence}"


def _listed(codes: Iterable[ReasonCode | None]) -> str:
    return ", ".join(code or "no outcome" for code in codes) or "nothing"
