"""Two jobs swap GPUs because the memory of one grows: ``make demo-swap``.

Played as ``frenzy demo --swap`` does. Both are trained again without interruption meanwhile; judged from what
the ledger and the workers recorded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from tests.embedded_stack import Stack
from tests.scenarios.checks import loss_equals_control
from tests.scenarios.control import ControlRun
from tests.scenarios.moves import LOOK_EVERY_S, budget_untouched, overlap_s

from frenzy.adapters.spec.spec_file import SpecFile
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.cli.commands.submission import Started
from frenzy.cli.demo import Outcome, api_of, run_demo, say
from frenzy.cli.demo_checks import LEFT_FOR_MEMORY, Check, all_free, all_succeeded, batches_kept, moved, nothing_lost
from frenzy.cli.demo_migrations import Say, Stage, specs_of
from frenzy.cli.demo_migrations import play as play_scene
from frenzy.cli.embedded.airflow_env import STACK_MARK
from frenzy.cli.render.error_text import guarded
from frenzy.core.lifecycle.moves import MOVE_REASONS
from frenzy.core.runs.ledger import Attempt
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import MemoryView
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.units import format_bytes

_CONTROL_TIMEOUT_S: Final = 600.0
_TOLD_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run at its end, and the losses by step of the same job never interrupted."""

    view: RunView
    memory: MemoryView
    control_losses: Mapping[int, float]
    control_result: AttemptResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapStory:
    """The two runs at their ends, and the GPUs that were not free then."""

    roomy: Watched
    growing: Watched
    num_held_gpus: int


def play(api: Api, specs: Sequence[SpecFile], say: Say, folder: Path, environ: Mapping[str, str]) -> SwapStory:
    """Hand in the roomy and the growing job; train each again without interruption below ``folder``.

    environ: what the workers of those control runs inherit. They start as soon as both jobs train where they
    have moved to, so that nothing is waited for twice. Raises TemporaryError when it takes too long.
    """
    controls = [ControlRun(folder / name, environ) for name in ("roomy", "growing")]

    def meanwhile(stage: Stage, started: Sequence[Started]) -> None:
        stage.until("both jobs' moves", lambda: all(_has_moved(stage, each) for each in started))
        _start_controls(stage, started, controls, say)

    try:
        ending = play_scene(api, "swap", specs, say, meanwhile, poll_s=LOOK_EVERY_S)
        roomy, growing = (
            _watched(api, view, control, say) for view, control in zip(ending.views, controls, strict=True)
        )
    finally:
        for control in controls:
            control.stop()
    return SwapStory(roomy=roomy, growing=growing, num_held_gpus=ending.num_held_gpus)


def _has_moved(stage: Stage, started: Started) -> bool:
    """Whether it trains at its second place, or ended without one."""
    view = stage.view(started)
    moved = view is not None and any(each.attempt > 1 and each.last_step > 0 for each in view.attempts)
    return moved or stage.has_ended(started)


def _start_controls(stage: Stage, both: Iterable[Started], controls: Iterable[ControlRun], say: Say) -> None:
    say("Training both again without interruption, to compare ...")
    for started, control in zip(both, controls, strict=True):
        view = stage.known(started)
        if view.attempts:
            control.start(view.run.job, view.attempts[0].plan)


def _watched(api: Api, view: RunView, control: ControlRun, say: Say) -> Watched:
    result = _waited_for(control, f"{view.run.job.name} without interruption", say) if control.is_started else None
    return Watched(
        view=view,
        memory=api.ask(endpoints.memory(view.run.run_key)),
        control_losses=control.losses() if control.is_started else {},
        control_result=result,
    )


def _waited_for(control: ControlRun, name: str, say: Say) -> AttemptResult | None:
    """The control run's result; meanwhile how far it is, now and then."""
    deadline = time.monotonic() + _CONTROL_TIMEOUT_S
    while control.is_alive and time.monotonic() < deadline:
        if control.wait(_TOLD_EVERY_S) is None:
            say(f"         {name}: step {max(control.losses(), default=0)}")
    return control.wait(0.0)


def judge(story: SwapStory) -> tuple[Check, ...]:
    """Every check, in the order of the story."""
    roomy, growing = story.roomy.view, story.growing.view
    return (
        all_succeeded("Both jobs trained to their last step", roomy, growing),
        _outgrew(growing),
        _gave_way(story),
        _took_over(story),
        _both_went_on(story),
        _kept_what_it_got(growing),
        nothing_lost(MOVE_REASONS | LEFT_FOR_MEMORY, roomy, growing),
        batches_kept(roomy, growing),
        budget_untouched(roomy),
        _same_loss("growing", story.growing),
        _same_loss("roomy", story.roomy),
        all_free(story.num_held_gpus),
    )


def _outgrew(growing: RunView) -> Check:
    """It stopped before its memory ran out, and went on where a GPU has more."""
    pairs = [(one, next_) for one, next_ in moved(growing, *LEFT_FOR_MEMORY) if _memory(next_) > _memory(one)]
    told = [f"{format_bytes(_memory(one))} -> {format_bytes(_memory(next_))}" for one, next_ in pairs]
    name = "The growing job left its GPU for a larger one before memory ran out"
    return Check(name=name, passed=bool(pairs), evidence=", ".join(told))


def _memory(attempt: Attempt) -> int:
    return attempt.plan.gpu_memory_bytes


def _exchange(story: SwapStory) -> tuple[Attempt, Attempt] | None:
    """The roomy job's attempt that gave way, and the growing one's on its GPUs."""
    for before, _ in moved(story.roomy.view, *MOVE_REASONS):
        for _, after in moved(story.growing.view, *LEFT_FOR_MEMORY):
            if _nodes(before) & _nodes(after) and before.plan.gpu_type == after.plan.gpu_type:
                return before, after
    return None


def _nodes(attempt: Attempt) -> set[str]:
    return {each.node for each in attempt.placement.allocations}


def _gave_way(story: SwapStory) -> Check:
    found = _exchange(story)
    told = found[0].outcome if found is not None else None
    named = told is not None and story.growing.view.run.job.name in told.sentence
    name = "The roomy job moved at a checkpoint, and was told for whom"
    return Check(name=name, passed=named, evidence=told.sentence if told else "")


def _took_over(story: SwapStory) -> Check:
    found = _exchange(story)
    name = "The growing job went on where the roomy one had been"
    return Check(name=name, passed=found is not None, evidence=", ".join(_nodes(found[1])) if found else "")


def _both_went_on(story: SwapStory) -> Check:
    """Seconds in which both trained, each at its new place."""
    shared_s = sum(
        overlap_s(elsewhere, larger)
        for _, elsewhere in moved(story.roomy.view, *MOVE_REASONS)
        for _, larger in moved(story.growing.view, *LEFT_FOR_MEMORY)
    )
    return Check(name="Both trained at their new places at once", passed=shared_s > 0, evidence=f"{shared_s:.0f} s")


def _kept_what_it_got(growing: RunView) -> Check:
    num = len(list(moved(growing, *MOVE_REASONS)))
    return Check(name="What was given for memory was not taken back", passed=num == 0, evidence=f"{num} more moves")


def _same_loss(which: str, run: Watched) -> Check:
    return replace(loss_equals_control(run), name=f"The {which} job's loss equals that of an uninterrupted run")


def walk(stack: Stack) -> Outcome:
    home = stack.settings.home
    with api_of(stack) as api:
        story = play(api, specs_of("swap"), say, home / "control", {**os.environ, STACK_MARK: str(home)})
    return Outcome(view=story.growing.view, checks=judge(story))


if __name__ == "__main__":
    sys.exit(guarded(partial(run_demo, walk, elastic=True)))
