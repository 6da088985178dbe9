"""Runs the trainer's evaluation as a process and reads what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frenzy.adapters.source_settings import source_rules
from frenzy.airflow.tasks.workers import workers
from frenzy.core.runs.ledger import RunRecord
from frenzy.core.runs.masking import masked_at, without_masked
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.run_files import how_ended
from frenzy.core.values.telemetry import printable

_MODULE: Final = "frenzy.trainer.evaluate"
_TERMINATE_S: Final = 5.0


class Evaluation:
    """The evaluation of one run's model; its output goes to the task's log line by line."""

    def __init__(self, view: RunView, log: Any) -> None:
        self._view = view
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> dict[str, Any]:
        """Perplexity, sample and more, as the process found them."""
        from frenzy.core.values import codec
        from frenzy.trainer.evaluate import EvaluationRequest

        run = self._view.run
        if run.job.workload is not None:
            raise AirflowSkipException("The job's own script trained; nobody else knows how to score what it left.")
        if not run.job.evaluation.enabled:
            raise AirflowSkipException("evaluation.enabled is off in the job's specification.")
        run = replace(run, job=self._whole_job(run))
        with tempfile.TemporaryDirectory(prefix="frenzy-evaluation-") as folder:
            request = EvaluationRequest(
                run_dir=workers().runs.run_dir(run.run_key),
                job=run.job,
                model_config=run.model_config or {},
                prepared=run.prepared,
                sources=source_rules(workers().settings, os.environ),
                output=f"{folder}/result.json",
            )
            self._run([sys.executable, "-m", _MODULE], codec.dumps(request), run, scratch=folder)
            found: dict[str, Any] = json.loads(Path(request.output).read_text(encoding="utf-8"))
        return without_masked(found, run)

    def _whole_job(self, run: RunRecord) -> TrainingJob:
        """The ledger's job. Only its workers' specification has the masked texts; all else must be the same."""
        if not run.masked:
            return run.job
        attempt = max((each.attempt for each in self._view.attempts), default=1)
        spec = workers().runs.spec(run.run_key, attempt)
        if spec is None or masked_at(spec.job, run.masked) != run.job:
            raise AirflowFailException("The run directory's spec.json is not what the workers were told.")
        return spec.job

    def _run(self, command: list[str], request: str, run: RunRecord, *, scratch: str) -> None:
        """scratch: for its temporary files, which stay where it is killed."""
        last = ""
        pipe = subprocess.PIPE
        env = _environment() | {"TMPDIR": scratch}
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=env
        ) as process:
            self._process = process
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError), process.stdin as asked:
                asked.write(request)
            for line in process.stdout:
                line = without_masked(printable(line), run)
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


def check_end(exit_code: int, last: str) -> None:
    """Raises what the task is to end with for ``exit_code`` of the process, whose last line was ``last``."""
    from frenzy.trainer.evaluate import NO_ROOM

    if exit_code == NO_ROOM:  # the training has succeeded, and so is the DAG run to
        raise AirflowSkipException(last)
    if exit_code != 0:
        how = how_ended(128 - exit_code if exit_code < 0 else exit_code)
        raise AirflowFailException(f"The evaluation {how}: {last}")


def _environment() -> dict[str, str]:
    """Without what Airflow holds: the model, the data and their formats are what a user chose."""
    from frenzy.adapters.local.worker_environment import helper_environment

    # One thread unless told otherwise: the worker's machine trains, too, and idle threads spin.
    return {"OMP_NUM_THREADS": "1", **helper_environment(os.environ), "PYTHONUNBUFFERED": "1"}
