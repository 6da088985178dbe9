"""``frenzy demo --elastic`` and ``--swap``: jobs that move for one another, on one Airflow.

*elastic*: the steady job and the long one share all GPUs of a type; then the short one arrives. *swap*: the
roomy job holds the only large GPU, though it would fit a smaller one; the growing job's memory grows until it
fits the large one only. Who gives up what, and when, is the scheduler's decision; what is judged is what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from frenzy.adapters.spec.spec_file import SpecFile, checked_spec
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.cli.commands.submission import Started, dag_run_state, submit_spec
from frenzy.core.runs.ledger import FINAL_STATES
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.settings import CHECKOUT

_PATIENCE_S: Final = 900.0
_POLL_S: Final = 0.7

Say = Callable[[str], None]

# The jobs in the order they are submitted, and the steps each has done before the next one is.
SCENES: Final[Mapping[str, Mapping[str, int]]] = {
    "elastic": {"steady": 1, "long": 10, "short": 0},
    "swap": {"roomy": 1, "growing": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The runs at their ends, in the order of the scene, and the GPUs that were not free then."""

    views: tuple[RunView, ...]
    num_held_gpus: int


class Stage:
    """The jobs that were submitted, and what of their history was shown already."""

    def __init__(self, api: Api, say: Say, poll_s: float) -> None:
        self._api, self._say, self._poll_s = api, say, poll_s
        self._started: list[Started] = []
        self._num_shown: dict[str, int] = {}
        self._began_s = time.monotonic()

    def submit(self, spec: SpecFile) -> Started:
        started = submit_spec(self._api, spec, trigger=True)
        self._started.append(started)
        self._tell(f"{started.job.name} is submitted.")
        return started

    def view(self, started: Started) -> RunView | None:
        assert started.run_id is not None, "it was triggered"
        found = self._api.ask(endpoints.runs_of_dag_run(started.job.dag_id, started.run_id))
        return found[0] if found else None

    def last_step(self, started: Started) -> int:
        view = self.view(started)
        return max((each.last_step for each in view.attempts), default=0) if view is not None else 0

    def has_done(self, started: Started, num_steps: int) -> bool:
        return self.last_step(started) >= num_steps

    def has_ended(self, started: Started) -> bool:
        view = self.view(started)
        if view is None or view.run.state not in FINAL_STATES or started.run_id is None:
            return False
        return dag_run_state(self._api, started.job.dag_id, started.run_id) in ("success", "failed")

    def known(self, started: Started) -> RunView:
        """The run of a job that the ledger knows, since it did a step or ended."""
        view = self.view(started)
        assert view is not None, "a run that did anything is known"
        return view

    def num_held_gpus(self) -> int:
        """GPUs that are not free."""
        return sum(row.num_gpus - row.num_free for row in self._api.ask(endpoints.gpus()).types)

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._tell_news()
            if time.monotonic() - self._began_s > _PATIENCE_S:
                detail = f"Waited {_PATIENCE_S:.0f} s, and {what} did not come."
                raise TemporaryError(Reason(code=ReasonCode.API_REFUSED, detail=detail), retry_after_s=0.0)
            time.sleep(self._poll_s)
        self._tell_news()

    def _tell_news(self) -> None:
        for started in self._started:
            view = self.view(started)
            events = () if view is None else view.events
            for event in events[self._num_shown.get(started.job.name, 0) :]:
                if event.kind == "state":
                    self._tell(f"{started.job.name} {event.text}")
            self._num_shown[started.job.name] = len(events)

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:5.0f} s  {text}")


def specs_of(scene: str) -> tuple[SpecFile, ...]:
    """The specifications of a scene's jobs. Raises SpecError."""
    folder = scene_folder(scene)
    return tuple(checked_spec(folder / f"{name}.yaml") for name in SCENES[scene])


def scene_folder(scene: str) -> Path:
    return CHECKOUT / "include/jobs" / scene


def play(
    api: Api,
    scene: str,
    specs: Sequence[SpecFile],
    say: Say,
    meanwhile: Callable[[Stage, Sequence[Started]], None] = lambda stage, started: None,
    *,
    poll_s: float = _POLL_S,
) -> Ending:
    """Hand the jobs in, each when the one before is on its way, and follow them to their ends.

    meanwhile: called once all are submitted. Raises TemporaryError when it takes too long.
    """
    stage = Stage(api, say, poll_s)
    started: list[Started] = []
    for (name, least), spec in zip(SCENES[scene].items(), specs, strict=True):
        job = stage.submit(spec)
        started.append(job)
        stage.until(f"step {least} of the {name} job", partial(stage.has_done, job, least))
    meanwhile(stage, started)
    stage.until("the end of all jobs", lambda: all(stage.has_ended(each) for each in started))
    return Ending(views=tuple(stage.known(each) for each in started), num_held_gpus=stage.num_held_gpus())
