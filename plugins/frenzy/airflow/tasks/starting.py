"""Starting an attempt's workers: what every launch task does, whatever runs them."""

from __future__ import annotations

from typing import Any

from frenzy.adapters.api_client import ApiClient
from frenzy.airflow.failures import airflow_errors, fail
from frenzy.airflow.tasks.workers import Workers
from frenzy.api import endpoints as api
from frenzy.core.lifecycle.disruptions import LOSS_REASONS
from frenzy.core.runs.protocol import AttemptStarted, DirectiveKind, EndReport
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersState

_OVER = (DirectiveKind.KILL, DirectiveKind.ENDED)
_STOP_GRACE_S = 2.0


class AttemptStart:
    """The start of the attempt that holds the run's GPUs; ``stop`` may come at any time, from a signal too."""

    def __init__(self, *, client: ApiClient, workers: Workers, log: Any) -> None:
        self._client, self._workers, self._log = client, workers, log
        self._spec: LaunchSpec | None = None

    def run(self, run_key: str) -> LaunchSpec:
        """Start the workers; an attempt that runs already is found again. Raises Airflow's exceptions."""
        with airflow_errors():
            attempt = placed_attempt(self._client, run_key)
            directive = self._client.send(api.launching(run_key, attempt))
            if directive.spec is None:
                fail(directive.reason, f"Attempt {attempt} is to be {directive.kind}.")
            self._spec = spec = directive.spec
            started = AttemptStarted(launcher_ref=self._start(spec))
            directive = self._client.send(api.started(spec.run_key, spec.attempt, started))
        if directive.kind in _OVER:
            self._stop_again(spec, directive.kind)
        return spec

    def stop(self) -> None:
        """End what was started, if anything was."""
        if self._spec is not None:
            self._workers.launcher.stop(self._spec, grace_s=_STOP_GRACE_S)

    def _start(self, spec: LaunchSpec) -> str:
        self._log.info("Starting attempt %d: %s in %s.", spec.attempt, spec.plan.plan_id, spec.run_dir)
        try:
            if self._workers.launcher.state(spec) is WorkersState.NOT_STARTED:
                self._workers.runs.clear_reports(spec.run_key, spec.attempt)
            self._workers.runs.put_spec(spec)
            return self._workers.launcher.launch(spec)
        except Exception as error:
            self._report_failure(spec, error)
            raise

    def _stop_again(self, spec: LaunchSpec, why: str) -> None:
        """The attempt was ended while its workers started: nobody watches them, and their GPUs may be free."""
        self._log.warning("Attempt %d is to be %s; its workers are ended now.", spec.attempt, why)
        self._workers.launcher.stop(spec, grace_s=0.0)

    def _report_failure(self, spec: LaunchSpec, error: Exception) -> None:
        """Free the GPUs, unless workers might be there all the same: then ``decide`` sees to them."""
        if self._workers.launcher.state(spec) in (WorkersState.NOT_STARTED, WorkersState.GONE):
            self._client.send(api.end(spec.run_key, spec.attempt, EndReport(reason=_why_not_started(error))))


def placed_attempt(client: ApiClient, run_key: str) -> int:
    """The number of the attempt that holds GPUs. Raises PermanentError when there is none."""
    view = client.send(api.place(run_key))
    if view.spec is None:
        detail = f"The run holds no GPUs; it is {view.status}."
        raise PermanentError(
            view.reason or Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy="Clear the place task, too.")
        )
    return view.spec.attempt


def _why_not_started(error: Exception) -> Reason:
    """What the cluster itself refused keeps its code: the run is to try again, and nobody is to blame."""
    if isinstance(error, FrenzyError) and error.reason.code in LOSS_REASONS:
        return error.reason
    return Reason(code=ReasonCode.LAUNCH_FAILED, detail=f"The workers could not be started: {error}")
