"""Several jobs of a demo on one Airflow: handed in one after the other, watched, and told of as they go."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.cli.commands.spec_file import SpecFile
from frenzy.cli.commands.submission import Started, dag_run_state, hand_in
from frenzy.core.runs.ledger import FINAL_STATES
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError

_PATIENCE_S: Final = 900.0
_POLL_S: Final = 0.7

Say = Callable[[str], None]


class Stage:
    """The jobs that were handed in, and what of their history was told already."""

    def __init__(self, api: Api, say: Say) -> None:
        self._api, self._say = api, say
        self._started: list[Started] = []
        self._told: dict[str, int] = {}
        self._began_s = time.monotonic()

    def hand_in(self, spec: SpecFile) -> Started:
        started = hand_in(self._api, spec, trigger=True)
        self._started.append(started)
        self._tell(f"{started.job.name} is handed in.")
        return started

    def view(self, started: Started) -> RunView | None:
        assert started.run_id is not None, "it was triggered"
        found = self._api.ask(endpoints.runs_of_dag_run(started.job.dag_id, started.run_id))
        return found[0] if found else None

    def last_step(self, started: Started) -> int:
        view = self.view(started)
        return max((each.last_step for each in view.attempts), default=0) if view is not None else 0

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
