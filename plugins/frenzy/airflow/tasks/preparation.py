"""Preparing a run's data before it has GPUs: what the task does, whatever prepares."""

from __future__ import annotations

import time
from typing import Any, Final

from airflow.sdk.exceptions import AirflowException

from frenzy.adapters.api_client import ApiClient
from frenzy.airflow.failures import airflow_errors, fail, said
from frenzy.airflow.tasks.workers import Workers
from frenzy.api import endpoints as api
from frenzy.core.lifecycle.monitor import progress_text
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.protocol import DirectiveKind, PreparedReport, PreparingReport
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.prepared_data import PreparingResult, PreparingSpec
from frenzy.core.values.run_files import REASON_BY_EXIT, ExitCode, how_ended
from frenzy.core.values.telemetry import Heartbeat, printable
from frenzy.core.values.units import format_duration
from frenzy.ports import PreparerAccount, WorkersState

STOPPED: Final = PreparingResult(exit_code=ExitCode.CHECKPOINTED, detail="The run needs its data no more.")
_OVER: Final = (WorkersState.GONE, WorkersState.NOT_STARTED)
_CRASHED: Final = 1
_LISTEN_S: Final = 2.0
_REPORT_S: Final = 5.0


class Preparation:
    """The preparation of one run's data; ``stop`` may come at any time, from a signal too."""

    def __init__(self, *, client: ApiClient, workers: Workers, log: Any) -> None:
        self._client, self._workers, self._log = client, workers, log
        self._run_key: str | None = None

    def begin(self, run_key: str) -> PreparingSpec | None:
        """Start a process, or find one that is at work; None where there is nothing to prepare any more.

        Raises Airflow's exceptions.
        """
        with airflow_errors():
            found = self._workers.preparer.found(run_key)
            directive = self._client.send(api.preparing(run_key, PreparingReport(begins=True, found=found)))
            if directive.kind is DirectiveKind.ENDED:
                self._log.info("There is nothing to prepare any more.")
                return None
            spec = directive.spec
            if spec is None:
                fail(directive.reason, "The run is over.")
            self._run_key = run_key
            if spec.number != found:
                self._start(spec)
        return spec

    def watch(self, spec: PreparingSpec) -> PreparingResult:
        """Look until the process has ended, or is to be."""
        watch = PreparingWatch(spec, self._workers, self._log)
        while True:
            with airflow_errors():
                result = watch.look()
                if result is not None:
                    return result
                report = watch.due()
                if report is not None and not self._goes_on(spec, report):
                    self._workers.preparer.stop(spec.run_key)
                    return STOPPED
            time.sleep(self._workers.settings.poll_s)

    def settle(self, run_key: str, result: PreparingResult, *, is_last_try: bool) -> dict[str, Any]:
        """Tell the ledger what was prepared, then let go of the process: whoever is killed in between has told it.

        Raises Airflow's exceptions where nothing was prepared; another try goes on.
        """
        reason = None if result.prepared is not None else _reason_of(result)
        is_final = is_last_try or reason is None or reason.code is ReasonCode.BAD_CONFIG_OR_DATA
        with airflow_errors():
            if reason is not None and result.exit_code != STOPPED.exit_code and not is_final:
                self._workers.preparer.stop(run_key)
                raise AirflowException(said(reason))
            run = self._client.send(api.prepared(run_key, PreparedReport(prepared=result.prepared, reason=reason))).run
            self._workers.preparer.stop(run_key)
        if run.prepared is None:
            fail(run.reason, f"The run is {run.state}.")
        self._log.info("%s tokens are prepared; the training has %s steps.", run.prepared.num_tokens, run.total_steps)
        return {"run_key": run_key, "num_tokens": run.prepared.num_tokens, "total_steps": run.total_steps}

    def stop(self) -> None:
        """End what was started, if anything was."""
        if self._run_key is not None:
            self._workers.preparer.stop(self._run_key)

    def _start(self, spec: PreparingSpec) -> None:
        self._log.info("Preparing the data, try %d, in %s.", spec.number, spec.data.folder)
        self._workers.preparer.stop(spec.run_key)
        self._workers.runs.put_preparing(spec)
        self._workers.preparer.start(spec, lambda line: self._log.info("%s", without_masked(line, spec)))

    def _goes_on(self, spec: PreparingSpec, report: PreparingReport) -> bool:
        return self._client.send(api.preparing(spec.run_key, report)).kind is DirectiveKind.CONTINUE


class PreparingWatch:
    """One process that prepares, seen from outside. ``look`` may run in another thread."""

    def __init__(self, spec: PreparingSpec, workers: Workers, log: Any) -> None:
        self._spec, self._workers, self._log = spec, workers, log
        self._sign: Heartbeat | None = None
        self._waiting: Reason | None = None
        self._heard_s = self._changed_s = time.monotonic()
        self._reported_s = float("-inf")

    def look(self) -> PreparingResult | None:
        """How the process ended, once it has. One that shows no progress for too long is ended."""
        account = self._workers.preparer.account(self._spec)
        if account.state in _OVER:
            return self._result(account)
        if account.waiting is not None and account.waiting != self._waiting:
            self._waiting = account.waiting
            self._log.info("It waits. %s", said(account.waiting))
        self._listen(is_waiting=account.waiting is not None)
        silent_s = time.monotonic() - self._changed_s
        if silent_s <= self._workers.settings.startup_s:
            return None
        self._workers.preparer.stop(self._spec.run_key)
        return PreparingResult(exit_code=_CRASHED, detail=f"it showed no progress for {format_duration(silent_s)}")

    def due(self) -> PreparingReport | None:
        """What the ledger is to be told now; None while it knows."""
        if time.monotonic() - self._reported_s < _REPORT_S:
            return None
        self._reported_s = time.monotonic()
        return PreparingReport(progress=self._sign)

    def _listen(self, *, is_waiting: bool) -> None:
        now = time.monotonic()
        if now - self._heard_s < _LISTEN_S:
            return
        self._heard_s = now
        sign = self._workers.runs.preparing_sign(self._spec)
        if sign is not None and sign != self._sign:
            self._log.info("Going on: %s.", printable(progress_text(sign)))
        if is_waiting or sign != self._sign:
            self._sign, self._changed_s = sign, now

    def _result(self, account: PreparerAccount) -> PreparingResult:
        for line in account.output.splitlines():
            self._log.info("%s", without_masked(printable(line), self._spec))
        result = self._workers.runs.preparing_result(self._spec)
        if result is None or (account.reason is not None and result.prepared is None):
            code = account.exit_code or _CRASHED
            detail = f"the process {how_ended(code)} and left no result"
            result = PreparingResult(exit_code=code, detail=said(account.reason) if account.reason else detail)
        detail = without_masked(printable(result.detail), self._spec)
        return PreparingResult(exit_code=result.exit_code, detail=detail, prepared=result.prepared)


def _reason_of(result: PreparingResult) -> Reason:
    code = REASON_BY_EXIT.get(result.exit_code, ReasonCode.DATA_NOT_PREPARED)
    is_named = code is not ReasonCode.DATA_NOT_PREPARED
    return Reason(code=code, detail=result.detail if is_named else f"The data could not be prepared: {result.detail}")
