"""``frenzy demo --swap``: a job outgrows its GPU, and gets a larger one from a job that fits elsewhere.

The roomy job holds the only large GPU, though it would fit a smaller one. The growing job's memory grows until
it fits the large one only. Who moves, and when, is the scheduler's decision; what is judged is what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from frenzy.adapters import api_calls
from frenzy.cli.connection import Api
from frenzy.cli.demo_control import ControlRun
from frenzy.cli.demo_stage import Say, Stage
from frenzy.cli.demo_swap_promises import SwapStory, Watched
from frenzy.cli.spec_file import checked_spec
from frenzy.cli.submission import Started
from frenzy.settings import CHECKOUT

SWAP_JOBS: Final = CHECKOUT / "include/jobs/swap"
_CONTROL_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSpecs:
    """The specifications of the two jobs, as YAML."""

    roomy: str
    growing: str


def specs_in(folder: Path) -> SwapSpecs:
    """The files ``roomy.yaml`` and ``growing.yaml``. Raises SpecError."""
    return SwapSpecs(**{each.name: checked_spec(folder / f"{each.name}.yaml").text for each in fields(SwapSpecs)})


def play(api: Api, specs: SwapSpecs, say: Say, folder: Path, environ: Mapping[str, str]) -> SwapStory:
    """Hand the jobs in and follow them to their ends; then train each again without interruption below ``folder``.

    environ: what the workers of those control runs inherit. Raises TemporaryError when it takes too long.
    """
    stage = Stage(api, say)
    roomy = stage.hand_in(specs.roomy)
    stage.until("the roomy job's first step", lambda: stage.last_step(roomy) > 0)
    growing = stage.hand_in(specs.growing)
    stage.until("the end of both jobs", lambda: all(stage.has_ended(each) for each in (roomy, growing)))
    num_held_gpus = stage.num_held_gpus()
    say("Training both again without interruption, to compare ...")
    controls = {each.job.name: ControlRun(folder / each.job.name, environ) for each in (roomy, growing)}
    try:
        for started in (roomy, growing):
            view = stage.end(started)
            if view.attempts:
                controls[started.job.name].start(view.run.job, view.attempts[0].plan)
        watched = [_watched(api, stage, each, controls[each.job.name]) for each in (roomy, growing)]
    finally:
        for control in controls.values():
            control.stop()
    return SwapStory(roomy=watched[0], growing=watched[1], num_held_gpus=num_held_gpus)


def _watched(api: Api, stage: Stage, started: Started, control: ControlRun) -> Watched:
    view = stage.end(started)
    result = control.wait(_CONTROL_TIMEOUT_S) if control.is_started else None
    return Watched(
        view=view,
        memory=api.ask(api_calls.memory(view.run.run_key)),
        control_losses=control.losses() if control.is_started else {},
        control_result=result,
    )
