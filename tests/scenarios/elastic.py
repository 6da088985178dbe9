"""Three jobs, one of which makes room for another and grows back: ``make demo-elastic``.

Played as ``frenzy demo --elastic`` does; judged from what the ledger recorded of the three runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tests.embedded_stack import Stack
from tests.scenarios.moves import LOOK_EVERY_S, budget_untouched, overlap_s

from frenzy.adapters.spec.spec_file import SpecFile
from frenzy.cli.commands.server import Api
from frenzy.cli.demo import Outcome, api_of, run_demo, say
from frenzy.cli.demo_checks import Check, all_free, all_succeeded, batches_kept, moved, nothing_lost
from frenzy.cli.demo_migrations import Say, specs_of
from frenzy.cli.demo_migrations import play as play_scene
from frenzy.cli.render.error_text import guarded
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


def play(api: Api, specs: Sequence[SpecFile], say: Say) -> Story:
    """Hand in the steady, the long and the short job, and follow them to their ends."""
    ending = play_scene(api, "elastic", specs, say, poll_s=LOOK_EVERY_S)
    steady, long, short = ending.views
    return Story(steady=steady, long=long, short=short, num_held_gpus=ending.num_held_gpus)


def judge(story: Story) -> tuple[Check, ...]:
    """Every check, in the order of the story."""
    return (
        all_succeeded("All three jobs trained to their last step", *story.runs),
        _made_room(story),
        _shared(story),
        _grew_back(story),
        _left_alone(story),
        nothing_lost(MOVE_REASONS, *story.runs),
        batches_kept(story.long),
        budget_untouched(story.long),
        all_free(story.num_held_gpus),
    )


def _made_room(story: Story) -> Check:
    shrunk = list(moved(story.long, ReasonCode.MOVED_TO_SHRINK))
    told = shrunk[0][0].outcome if shrunk else None
    passed = any(after.plan.num_gpus < before.plan.num_gpus for before, after in shrunk)
    return Check(
        name="The long job shrank when the short one arrived", passed=passed, evidence=told.sentence if told else ""
    )


def _shared(story: Story) -> Check:
    """Seconds in which the short job trained, and the long one at the same time on fewer GPUs."""
    shared_s = 0.0
    for _, smaller in moved(story.long, ReasonCode.MOVED_TO_SHRINK):
        shared_s += sum(overlap_s(smaller, each) for each in story.short.attempts)
    name = "Both trained at the same time, the long one on fewer GPUs"
    return Check(name=name, passed=shared_s > 0, evidence=f"{shared_s:.0f} s")


def _grew_back(story: Story) -> Check:
    grown = list(moved(story.long, ReasonCode.MOVED_TO_GROW))
    widths = " -> ".join(str(each.plan.num_gpus) for each in story.long.attempts)
    passed = any(after.plan.num_gpus > before.plan.num_gpus for before, after in grown)
    return Check(name="The long job grew back", passed=passed, evidence=f"GPUs: {widths}")


def _left_alone(story: Story) -> Check:
    num = len(story.steady.attempts)
    return Check(name="The job with elastic: off was never moved", passed=num == 1, evidence=f"{num} attempt")


def walk(stack: Stack) -> Outcome:
    with api_of(stack) as api:
        story = play(api, specs_of("elastic"), say)
    return Outcome(view=story.long, checks=judge(story))


if __name__ == "__main__":
    sys.exit(guarded(partial(run_demo, walk, elastic=True)))
