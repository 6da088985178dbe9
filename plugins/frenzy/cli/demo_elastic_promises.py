"""What elasticity promises, judged from what the ledger recorded of three runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frenzy.cli.demo_promises import Promise
from frenzy.core.errors import ReasonCode
from frenzy.core.ledger import Attempt, JobState
from frenzy.core.moves import MOVE_REASONS
from frenzy.core.protocol import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The three runs at their ends, and the GPUs that were not free then."""

    steady: RunView
    long: RunView
    short: RunView
    num_held_gpus: int

    @property
    def runs(self) -> tuple[RunView, ...]:
        return (self.steady, self.long, self.short)


def judge(story: Story) -> tuple[Promise, ...]:
    """Every promise, in the order of the story."""
    return (
        _all_succeeded(story),
        _made_room(story),
        _shared(story),
        _grew_back(story),
        _left_alone(story),
        _nothing_lost(story),
        _batch_kept(story),
        _budget_untouched(story),
        Promise(
            name="All GPUs are free at the end", kept=story.num_held_gpus == 0, evidence=f"{story.num_held_gpus} held"
        ),
    )


def _all_succeeded(story: Story) -> Promise:
    states = [f"{view.run.job.name} {view.run.state}" for view in story.runs]
    kept = all(view.run.state is JobState.SUCCEEDED for view in story.runs)
    return Promise(name="All three jobs trained to their last step", kept=kept, evidence=", ".join(states))


def _moved(view: RunView, *codes: ReasonCode) -> Iterator[tuple[Attempt, Attempt]]:
    """Each attempt that ended for one of ``codes``, with the one after it."""
    for before, after in zip(view.attempts, view.attempts[1:], strict=False):
        if before.outcome is not None and before.outcome.code in codes:
            yield before, after


def _made_room(story: Story) -> Promise:
    shrunk = list(_moved(story.long, ReasonCode.MOVED_TO_SHRINK))
    told = shrunk[0][0].outcome if shrunk else None
    kept = any(after.plan.num_gpus < before.plan.num_gpus for before, after in shrunk)
    return Promise(
        name="The long job shrank when the short one arrived", kept=kept, evidence=told.sentence if told else ""
    )


def _shared(story: Story) -> Promise:
    """Seconds in which the short job trained, and the long one at the same time on fewer GPUs."""
    shared_s = 0.0
    for _, smaller in _moved(story.long, ReasonCode.MOVED_TO_SHRINK):
        shared_s += sum(_overlap_s(smaller, each) for each in story.short.attempts)
    name = "Both trained at the same time, the long one on fewer GPUs"
    return Promise(name=name, kept=shared_s > 0, evidence=f"{shared_s:.0f} s")


def _overlap_s(one: Attempt, other: Attempt) -> float:
    if None in (one.first_step_s, other.first_step_s, one.ended_s, other.ended_s):
        return 0.0
    starts = max(one.first_step_s or 0.0, other.first_step_s or 0.0)
    return max(0.0, min(one.ended_s or 0.0, other.ended_s or 0.0) - starts)


def _grew_back(story: Story) -> Promise:
    grown = list(_moved(story.long, ReasonCode.MOVED_TO_GROW))
    widths = " -> ".join(str(each.plan.num_gpus) for each in story.long.attempts)
    kept = any(after.plan.num_gpus > before.plan.num_gpus for before, after in grown)
    return Promise(name="The long job grew back", kept=kept, evidence=f"GPUs: {widths}")


def _left_alone(story: Story) -> Promise:
    num = len(story.steady.attempts)
    return Promise(name="The job with elastic: off was never moved", kept=num == 1, evidence=f"{num} attempt")


def _nothing_lost(story: Story) -> Promise:
    """Each move resumed at the very step it stopped at."""
    pairs = [pair for view in story.runs for pair in _moved(view, *MOVE_REASONS)]
    steps = [
        (before.result.last_step, after.result.resumed_from_step)
        for before, after in pairs
        if before.result is not None and after.result is not None
    ]
    kept = bool(pairs) and len(steps) == len(pairs) and all(stopped == resumed for stopped, resumed in steps)
    told = ", ".join(f"stopped at {stopped}, resumed from {resumed}" for stopped, resumed in steps)
    return Promise(name="No step was lost or repeated", kept=kept, evidence=told)


def _batch_kept(story: Story) -> Promise:
    batches = sorted({each.plan.global_batch_size for each in story.long.attempts})
    wanted = story.long.run.job.training.global_batch_size
    return Promise(name="The global batch stayed the same", kept=batches == [wanted], evidence=str(batches))


def _budget_untouched(story: Story) -> Promise:
    num = story.long.run.num_reschedules
    name = "The user's budget of reschedules is untouched"
    return Promise(
        name=name, kept=num == 0, evidence=f"{num} of {story.long.run.job.on_memory_pressure.max_reschedules}"
    )
