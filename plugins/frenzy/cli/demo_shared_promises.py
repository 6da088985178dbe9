"""What every demo of moves promises, judged from what the ledger recorded of its runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from frenzy.cli.demo_promises import Promise
from frenzy.core.runs.ledger import Attempt, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode


def moved(view: RunView, *codes: ReasonCode) -> Iterator[tuple[Attempt, Attempt]]:
    """Each attempt that ended for one of ``codes``, with the one after it."""
    for before, after in zip(view.attempts, view.attempts[1:], strict=False):
        if before.outcome is not None and before.outcome.code in codes:
            yield before, after


def overlap_s(one: Attempt, other: Attempt) -> float:
    """Seconds in which both trained."""
    if None in (one.first_step_s, other.first_step_s, one.ended_s, other.ended_s):
        return 0.0
    starts = max(one.first_step_s or 0.0, other.first_step_s or 0.0)
    return max(0.0, min(one.ended_s or 0.0, other.ended_s or 0.0) - starts)


def all_succeeded(name: str, *views: RunView) -> Promise:
    states = [f"{view.run.job.name} {view.run.state}" for view in views]
    return Promise(
        name=name, kept=all(view.run.state is JobState.SUCCEEDED for view in views), evidence=", ".join(states)
    )


def nothing_lost(codes: Collection[ReasonCode], *views: RunView) -> Promise:
    """Each move resumed at the very step it stopped at."""
    pairs = [pair for view in views for pair in moved(view, *codes)]
    steps = [
        (before.result.last_step, after.result.resumed_from_step)
        for before, after in pairs
        if before.result is not None and after.result is not None
    ]
    kept = bool(pairs) and len(steps) == len(pairs) and all(stopped == resumed for stopped, resumed in steps)
    told = ", ".join(f"stopped at {stopped}, resumed from {resumed}" for stopped, resumed in steps)
    return Promise(name="No step was lost or repeated", kept=kept, evidence=told)


def batch_kept(*views: RunView) -> Promise:
    batches = [sorted({each.plan.global_batch_size for each in view.attempts}) for view in views]
    kept = all(found == [view.run.job.training.global_batch_size] for found, view in zip(batches, views, strict=True))
    return Promise(
        name="The global batch stayed the same", kept=kept, evidence=", ".join(str(each) for each in batches)
    )


def budget_untouched(view: RunView) -> Promise:
    num, most = view.run.num_reschedules, view.run.job.on_memory_pressure.max_reschedules
    name = "The user's budget of reschedules is untouched"
    return Promise(name=name, kept=num == 0, evidence=f"{num} of {most}")


def all_free(num_held_gpus: int) -> Promise:
    return Promise(name="All GPUs are free at the end", kept=num_held_gpus == 0, evidence=f"{num_held_gpus} held")
