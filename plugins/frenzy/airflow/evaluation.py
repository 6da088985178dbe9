"""Runs the trainer's evaluation as a process and reads what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final, TypeVar

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frenzy.airflow.workers import workers
from frenzy.core.launch import LaunchSpec
from frenzy.core.masking import without_masked
from frenzy.core.protocol import RunView

_MODULE: Final = "frenzy.trainer.evaluate"
_TERMINATE_S: Final = 5.0
_Told = TypeVar("_Told")


class Evaluation:
    """The evaluation of one run's model; its output goes to the task's log line by line."""

    def __init__(self, view: RunView, log: Any) -> None:
        self._view = view
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> dict[str, Any]:
        """Perplexity, sample and more, as the process left them in the run directory."""
        from frenzy.trainer.evaluate import RESULT_NAME
        from frenzy.trainer.files import read_text

        if not self._view.run.job.evaluation.enabled:
            raise AirflowSkipException("evaluation.enabled is off in the job's specification.")
        run_key, attempt = self._view.run.run_key, max((each.attempt for each in self._view.attempts), default=1)
        run_dir, spec = workers().runs.run_dir(run_key), workers().runs.spec(run_key, attempt)
        self._run([sys.executable, "-m", _MODULE, "--run-dir", run_dir, "--attempt", str(attempt)], spec)
        found: dict[str, Any] = json.loads(read_text(f"{run_dir}/{RESULT_NAME}"))
        return _shown(found, spec)

    def _run(self, command: list[str], spec: LaunchSpec | None) -> None:
        last = ""
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=_environment()) as process:
            self._process = process
            assert process.stdout is not None
            for line in process.stdout:
                line = _shown(line, spec)
                last = line.strip() or last
                self._log.info("%s", line.rstrip())
        check_end(process.returncode, last)

    def kill(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_TERMINATE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _shown(told: _Told, spec: LaunchSpec | None) -> _Told:
    """What the process tells, for everybody who may see the task."""
    return told if spec is None else without_masked(told, spec)


def check_end(exit_code: int, last: str) -> None:
    """Raises what the task is to end with for ``exit_code`` of the process, whose last line was ``last``."""
    from frenzy.trainer.evaluate import NO_ROOM

    if exit_code == NO_ROOM:  # the training has succeeded, and so is the DAG run to
        raise AirflowSkipException(last)
    if exit_code != 0:
        raise AirflowFailException(f"The evaluation ended with exit code {exit_code}: {last}")


def _environment() -> dict[str, str]:
    """Without what Airflow holds: the model, the data and their formats are what a user chose."""
    from frenzy.adapters.local.worker_environment import helper_environment

    # One thread unless told otherwise: the worker's machine trains, too, and idle threads spin.
    return {"OMP_NUM_THREADS": "1", **helper_environment(os.environ), "PYTHONUNBUFFERED": "1"}
