"""``frenzy demo --elastic``: three jobs, one of which makes room for another and grows back.

The steady job and the long one share all GPUs of a type; then the short one arrives. Who gives up
what, and when it gets it back, is the scheduler's decision; what is judged is what happened.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from frenzy.cli.commands.server import Api
from frenzy.cli.commands.spec_file import SpecFile, checked_spec
from frenzy.cli.demo_elastic_promises import Story
from frenzy.cli.demo_stage import Say, Stage
from frenzy.settings import CHECKOUT

ELASTIC_JOBS: Final = CHECKOUT / "include/jobs/elastic"
# The long job has run for so many steps when the short one is handed in.
_STEPS_BEFORE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """The specifications of the three jobs."""

    steady: SpecFile
    long: SpecFile
    short: SpecFile


def specs_in(folder: Path) -> Specs:
    """The three files ``steady.yaml``, ``long.yaml`` and ``short.yaml``. Raises SpecError."""
    return Specs(**{each.name: checked_spec(folder / f"{each.name}.yaml") for each in fields(Specs)})


def play(api: Api, specs: Specs, say: Say) -> Story:
    """Hand the jobs in, each when the one before is on its way, and follow them to their ends.

    Raises TemporaryError when that takes too long.
    """
    stage = Stage(api, say)
    steady = stage.hand_in(specs.steady)
    stage.until("the steady job's first step", lambda: stage.last_step(steady) > 0)
    long = stage.hand_in(specs.long)
    stage.until("the long job's first steps", lambda: stage.last_step(long) >= _STEPS_BEFORE)
    short = stage.hand_in(specs.short)
    started = (steady, long, short)
    stage.until("the end of all three jobs", lambda: all(stage.has_ended(each) for each in started))
    views = [stage.known(each) for each in started]
    return Story(steady=views[0], long=views[1], short=views[2], num_held_gpus=stage.num_held_gpus())
