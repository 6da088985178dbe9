"""``frenzy demo --elastic``: three jobs, one of which makes room for another and grows back.

The steady job and the long one share all GPUs of a type; then the short one arrives. Who gives up
what, and when it gets it back, is the scheduler's decision; what is judged is what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from frenzy.adapters import api_calls
from frenzy.cli.connection import Api
from frenzy.cli.demo_elastic_promises import Story
from frenzy.cli.spec_file import checked_spec
from frenzy.cli.submission import Started, dag_run_state, hand_in
from frenzy.core.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.ledger import FINAL_STATES
from frenzy.core.protocol import RunView
from frenzy.settings import CHECKOUT

ELASTIC_JOBS: Final = CHECKOUT / "include/jobs/elastic"
# The long job has run for so many steps when the short one is handed in.
_STEPS_BEFORE: Final = 10
_PATIENCE_S: Final = 900.0
_POLL_S: Final = 0.7

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """The specifications of the three jobs, as YAML."""

    steady: str
    long: str
    short: str


def specs_in(folder: Path) -> Specs:
    """The three files ``steady.yaml``, ``long.yaml`` and ``short.yaml``. Raises SpecError."""
    return Specs(**{each.name: checked_spec(folder / f"{each.name}.yaml").text for each in fields(Specs)})


def play(api: Api, specs: Specs, say: Say) -> Story:
    """Hand the jobs in, each when the one before is on its way, and follow them to their ends.

    Raises TemporaryError when that takes too long.
    """
    stage = _Stage(api, say)
    steady = stage.hand_in(specs.steady)
    stage.until("the steady job's first step", lambda: stage.last_step(steady) > 0)
    long = stage.hand_in(specs.long)
    stage.until("the long job's first steps", lambda: stage.last_step(long) >= _STEPS_BEFORE)
    short = stage.hand_in(specs.short)
    started = (steady, long, short)
    stage.until("the end of all three jobs", lambda: all(stage.has_ended(each) for each in started))
    views = [stage.view(each) for each in started]
    gpus = api.ask(api_calls.gpus())
    held = sum(row.num_gpus - row.num_free for row in gpus.types)
    return Story(steady=_known(views[0]), long=_known(views[1]), short=_known(views[2]), num_held_gpus=held)


def _known(view: RunView | None) -> RunView:
    assert view is not None, "a run that has ended is known"
    return view


class _Stage:
    """The jobs that were handed in, and what of their history was told already."""

    def __init__(self, api: Api, say: Say) -> None:
        self._api, self._say = api, say
        self._started: list[Started] = []
        self._told: dict[str, int] = {}
        self._began_s = time.monotonic()

    def hand_in(self, text: str) -> Started:
        started = hand_in(self._api, text, trigger=True)
        self._started.append(started)
        self._tell(f"{started.job.name} is handed in.")
        return started

    def view(self, started: Started) -> RunView | None:
        assert started.run_id is not None, "it was triggered"
        found = self._api.ask(api_calls.runs_of_dag_run(started.job.dag_id, started.run_id))
        return found[0] if found else None

    def last_step(self, started: Started) -> int:
        view = self.view(started)
        return max((each.last_step for each in view.attempts), default=0) if view is not None else 0

    def has_ended(self, started: Started) -> bool:
        view = self.view(started)
        if view is None or view.run.state not in FINAL_STATES or started.run_id is None:
            return False
        return dag_run_state(self._api, started.job.dag_id, started.run_id) in ("success", "failed")

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._tell_news()
            if time.monotonic() - self._began_s > _PATIENCE_S:
                detail = f"Waited {_PATIENCE_S:.0f} s, and {what} did not come."
                raise TemporaryError(Reason(code=ReasonCode.API_REFUSED, detail=detail), retry_after_s=0.0)
            time.sleep(_POLL_S)
        self._tell_news()

    def _tell_news(self) -> None:
        for started in self._started:
            view = self.view(started)
            events = () if view is None else view.events
            for event in events[self._told.get(started.job.name, 0) :]:
                if event.kind == "state":
                    self._tell(f"{started.job.name} {event.text}")
            self._told[started.job.name] = len(events)

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:5.0f} s  {text}")
