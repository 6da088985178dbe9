"""What elasticity promises, judged from what the ledger recorded of three runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from frenzy.cli.demo_promises import Promise
from frenzy.cli.demo_shared_promises import (
    all_free,
    all_succeeded,
    batch_kept,
    budget_untouched,
    moved,
    nothing_lost,
    overlap_s,
)
from frenzy.core.lifecycle.moves import MOVE_REASONS
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode


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
        all_succeeded("All three jobs trained to their last step", *story.runs),
        _made_room(story),
        _shared(story),
        _grew_back(story),
        _left_alone(story),
        nothing_lost(MOVE_REASONS, *story.runs),
        batch_kept(story.long),
        budget_untouched(story.long),
        all_free(story.num_held_gpus),
    )


def _made_room(story: Story) -> Promise:
    shrunk = list(moved(story.long, ReasonCode.MOVED_TO_SHRINK))
    told = shrunk[0][0].outcome if shrunk else None
    kept = any(after.plan.num_gpus < before.plan.num_gpus for before, after in shrunk)
    return Promise(
        name="The long job shrank when the short one arrived", kept=kept, evidence=told.sentence if told else ""
    )


def _shared(story: Story) -> Promise:
    """Seconds in which the short job trained, and the long one at the same time on fewer GPUs."""
    shared_s = 0.0
    for _, smaller in moved(story.long, ReasonCode.MOVED_TO_SHRINK):
        shared_s += sum(overlap_s(smaller, each) for each in story.short.attempts)
    name = "Both trained at the same time, the long one on fewer GPUs"
    return Promise(name=name, kept=shared_s > 0, evidence=f"{shared_s:.0f} s")


def _grew_back(story: Story) -> Promise:
    grown = list(moved(story.long, ReasonCode.MOVED_TO_GROW))
    widths = " -> ".join(str(each.plan.num_gpus) for each in story.long.attempts)
    kept = any(after.plan.num_gpus > before.plan.num_gpus for before, after in grown)
    return Promise(name="The long job grew back", kept=kept, evidence=f"GPUs: {widths}")


def _left_alone(story: Story) -> Promise:
    num = len(story.steady.attempts)
    return Promise(name="The job with elastic: off was never moved", kept=num == 1, evidence=f"{num} attempt")
