"""One passage that says why a run is where it is: what was chosen, what changed, what was lost, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from frenzy.core.lifecycle.reschedule import DONE_REASONS, memory_move
from frenzy.core.runs.ledger import FINAL_STATES, Attempt, JobState, QueueEntry, RunRecord
from frenzy.core.values.errors import Reason
from frenzy.core.values.units import counted, format_bytes, format_duration

# From when on steps that take longer than predicted are worth a sentence, and after how many; the first ones are slow.
_SLOW: Final = 2.0
_FIRST_STEPS: Final = 3


def slow_steps(attempt: Attempt) -> str | None:
    """That its steps take several times as long as predicted; None where they do not, or it is not known yet."""
    plan, taken_s = attempt.plan, attempt.step_time_s
    own = attempt.last_step - (attempt.next_attempt.checkpoint_step or 0)
    if not plan.is_timed or not taken_s or own < _FIRST_STEPS or taken_s < _SLOW * plan.step_time_s:
        return None
    times = taken_s / plan.step_time_s
    how_long = f"{format_duration(taken_s)}, not {format_duration(plan.step_time_s)}"
    return f"Steps take {times:.{0 if times >= 10 else 1}f} times as long as predicted: {how_long}."


def why(run: RunRecord, attempts: Sequence[Attempt], entry: QueueEntry | None) -> str:
    """Sentences about now, then about the newest change. attempts: of the run, oldest first."""
    return " ".join(_closed(each) for each in (*_now(run, attempts, entry), *_last_change(attempts)))


def _closed(sentence: str) -> str:
    """What a worker's error says may end without a full stop."""
    return sentence if sentence.rstrip().endswith((".", "!", "?", ":")) else f"{sentence.rstrip()}."


def _now(run: RunRecord, attempts: Sequence[Attempt], entry: QueueEntry | None) -> Iterator[str]:
    if run.state is JobState.SUCCEEDED and attempts:
        yield _finished(attempts)
    elif run.state in FINAL_STATES:
        yield from _reason(run.reason)
    elif entry is not None:
        yield "It waits." if entry.hold is None else f"It waits: {entry.hold.sentence}"
        if entry.hold is not None and entry.hold.remedy:
            yield entry.hold.remedy
    elif attempts and attempts[-1].is_live:
        yield from _under_way(attempts[-1])
    else:
        yield from _reason(run.reason)


def _finished(attempts: Sequence[Attempt]) -> str:
    last, count = attempts[-1], len(attempts)
    made = f"{count} attempts" if count > 1 else "one attempt"
    return f"It has trained {last.last_step} steps in {made}, at the end on {last.plan.plan_id}."


def _under_way(attempt: Attempt) -> Iterator[str]:
    plan = attempt.plan
    fits = f"predicted {format_bytes(plan.memory.peak_allocated_bytes)} of {format_bytes(plan.gpu_memory_bytes)}"
    yield f"Attempt {attempt.attempt} has {plan.num_gpus} × {plan.gpu_type} as {plan.plan_id}, {fits} on each GPU."
    slow = slow_steps(attempt)
    if slow is not None:
        yield slow
    if attempt.stop_reason is not None:
        yield f"It saves a checkpoint and stops: {attempt.stop_reason.sentence}"


def _last_change(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Why the newest attempt followed the one before, and what that cost."""
    for before, after in list(pairwise(attempts))[-1:]:
        if before.outcome is None or before.outcome.code in DONE_REASONS:
            return
        yield f"Attempt {before.attempt} ended at step {before.last_step}: {before.outcome.sentence}"
        moved = memory_move(after.next_attempt, after.plan)
        if moved is not None:
            yield moved.sentence
        if after.is_live or after.first_step_s is not None:
            yield f"Attempt {after.attempt} {_lost(before, after)}."


def _lost(before: Attempt, after: Attempt) -> str:
    start = after.next_attempt.checkpoint_step
    starts, goes, is_, are = ("starts", "goes", "is", "are") if after.is_live else ("started", "went", "was", "were")
    lost = max(0, before.last_step - (start or 0))
    again = f"{counted(lost, 'step')} {is_ if lost == 1 else are} made again"
    if start is None:
        return f"{starts} again; {again if lost else 'nothing was lost'}"
    return f"{goes} on from step {start}; {again if lost else f'no step {is_} lost'}"


def _reason(reason: Reason | None) -> Iterator[str]:
    if reason is not None:
        yield reason.sentence
        if reason.remedy:
            yield reason.remedy
