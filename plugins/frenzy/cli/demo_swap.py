"""``frenzy demo --swap``: a job outgrows its GPU, and gets a larger one from a job that fits elsewhere.

The roomy job holds the only large GPU, though it would fit a smaller one. The growing job's memory grows until
it fits the large one only. Who moves, and when, is the scheduler's decision; what is judged is what happened.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.cli.commands.spec_file import SpecFile, checked_spec
from frenzy.cli.commands.submission import Started
from frenzy.cli.demo_control import ControlRun
from frenzy.cli.demo_stage import Say, Stage
from frenzy.cli.demo_swap_promises import SwapStory, Watched
from frenzy.core.values.launch import AttemptResult
from frenzy.settings import CHECKOUT

SWAP_JOBS: Final = CHECKOUT / "include/jobs/swap"
_CONTROL_TIMEOUT_S: Final = 600.0
_TOLD_EVERY_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSpecs:
    """The specifications of the two jobs."""

    roomy: SpecFile
    growing: SpecFile


def specs_in(folder: Path) -> SwapSpecs:
    """The files ``roomy.yaml`` and ``growing.yaml``. Raises SpecError."""
    return SwapSpecs(**{each.name: checked_spec(folder / f"{each.name}.yaml") for each in fields(SwapSpecs)})


def play(api: Api, specs: SwapSpecs, say: Say, folder: Path, environ: Mapping[str, str]) -> SwapStory:
    """Hand the jobs in and follow them to their ends; train each again without interruption below ``folder``.

    environ: what the workers of those control runs inherit. They start as soon as both jobs train where they
    have moved to, so that nothing is waited for twice. Raises TemporaryError when it takes too long.
    """
    stage = Stage(api, say)
    roomy = stage.hand_in(specs.roomy)
    stage.until("the roomy job's first step", lambda: stage.last_step(roomy) > 0)
    growing = stage.hand_in(specs.growing)
    both = (roomy, growing)
    controls = {each.job.name: ControlRun(folder / each.job.name, environ) for each in both}
    try:
        stage.until("both jobs' moves", lambda: all(_has_moved(stage, each) for each in both))
        _start_controls(stage, both, controls, say)
        stage.until("the end of both jobs", lambda: all(stage.has_ended(each) for each in both))
        num_held_gpus = stage.num_held_gpus()
        watched = [_watched(api, stage, each, controls[each.job.name], say) for each in both]
    finally:
        for control in controls.values():
            control.stop()
    return SwapStory(roomy=watched[0], growing=watched[1], num_held_gpus=num_held_gpus)


def _has_moved(stage: Stage, started: Started) -> bool:
    """Whether it trains at its second place, or ended without one."""
    view = stage.view(started)
    moved = view is not None and any(each.attempt > 1 and each.last_step > 0 for each in view.attempts)
    return moved or stage.has_ended(started)


def _start_controls(stage: Stage, both: Iterable[Started], controls: Mapping[str, ControlRun], say: Say) -> None:
    say("Training both again without interruption, to compare ...")
    for started in both:
        view = stage.known(started)
        if view.attempts:
            controls[started.job.name].start(view.run.job, view.attempts[0].plan)


def _watched(api: Api, stage: Stage, started: Started, control: ControlRun, say: Say) -> Watched:
    view = stage.known(started)
    result = _waited_for(control, f"{started.job.name} without interruption", say) if control.is_started else None
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
