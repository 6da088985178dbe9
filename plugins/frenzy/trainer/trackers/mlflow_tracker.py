"""MLflow: its tracking server, or its file store in the run directory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.trainer.trackers.tracker import Ending, Point, TrackedAttempt, flat

_LAST_STEP: Final = "frenzy.last_step"
# What a server takes in one request.
_MOST_PARAMS: Final = 100
_LONGEST_PARAM: Final = 500
_LONGEST_NAME: Final = 250
_NOT_IN_NAMES: Final = re.compile(r"[^\w.\- ]")
_STATUS: Final = {
    Ending.DONE: "FINISHED",
    Ending.GOES_ON: "SCHEDULED",
    Ending.CANCELLED: "KILLED",
    Ending.FAILED: "FAILED",
}


class MlflowTracker:
    """A tag of the run, put with the points themselves, says which step is its last."""

    def __init__(self, attempt: TrackedAttempt) -> None:
        self._attempt = attempt
        self._client: Any = None
        self._run_id = ""

    def open(self, known: TrackedRun, *, first_step: int) -> TrackedRun:
        # Offline its files are asked for; it would rather have a database.
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        # Whoever hands the points over tries again himself, and keeps them meanwhile.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import MlflowClient
        from mlflow.utils import credentials

        # Only what the job refers to: no passwords of whoever Airflow runs as.
        credentials._get_credentials_path = lambda: os.devnull
        if self._attempt.is_offline and self._client is None:  # later, what is here is newer than what was kept
            self._attempt.bring_files()
        self._client = MlflowClient(tracking_uri=self._attempt.tracker.uri or self._attempt.folder.as_uri())
        if known.place:
            return self._go_on(known)
        experiment = self._experiment()
        if not self._run_id:  # a try after one that failed goes on with its run
            run = self._client.create_run(experiment, run_name=self._attempt.name, tags=self._attempt.facts())
            self._run_id = run.info.run_id
        self._put_settings()
        return replace(known, tracker_run=self._run_id, place=self._place(experiment))

    def _go_on(self, known: TrackedRun) -> TrackedRun:
        self._run_id = known.tracker_run
        found = self._client.get_run(self._run_id)
        self._client.update_run(self._run_id, status="RUNNING")
        for name, value in self._attempt.facts().items():
            self._client.set_tag(self._run_id, name, value)
        return replace(known, last_step=int(found.data.tags.get(_LAST_STEP, 0)))

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._attempt.project)
        return str(self._client.create_experiment(self._attempt.project) if found is None else found.experiment_id)

    def _put_settings(self) -> None:
        from mlflow.entities import Param

        settings = {_NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME]: text for name, text in flat(self._attempt.settings())}
        params = [Param(name, text[:_LONGEST_PARAM]) for name, text in settings.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[first : first + _MOST_PARAMS])

    def _place(self, experiment: str) -> str:
        server = (self._attempt.tracker.uri or "").rstrip("/")
        return f"{server}/#/experiments/{experiment}/runs/{self._run_id}" if server else self._attempt.place

    def log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [
            Metric(name, value, int(1000 * each.time_s), each.step)
            for each in points
            for name, value in each.values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics, tags=[RunTag(_LAST_STEP, str(points[-1].step))])

    def close(self, ending: Ending) -> None:
        self._client.set_terminated(self._run_id, _STATUS[ending])
