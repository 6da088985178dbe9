"""What waits for a run: for its place, for its workers' end, and the watch over its memory.

A trigger keeps nothing: whatever it knows it can learn again from the API and the run directory,
so that one that was away for hours, or moved to another process, simply goes on. It never
raises; what is broken now may work at the next look.

A triggerer whose event loop stood still loses its triggers to another. When it is back, it cancels them as it
does those of tasks that a person ended, which it cannot tell apart (``RunTrigger.on_kill``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from frenzy.adapters.airflow_calls import task_instance
from frenzy.adapters.api_client import AsyncApiClient, NotFoundError
from frenzy.airflow.connection import async_api_client
from frenzy.airflow.failures import said
from frenzy.airflow.tasks.workers import Workers, workers
from frenzy.airflow.triggers.waiting import WaitingRuns
from frenzy.airflow.triggers.watch import Watch, untold
from frenzy.api import endpoints as api
from frenzy.api.declaration import Call
from frenzy.core.lifecycle.evidence import Bounds, believed, bounds_of
from frenzy.core.lifecycle.monitor import MonitorPolicy, progress_of
from frenzy.core.runs.ledger import Attempt
from frenzy.core.runs.masking import without_masked
from frenzy.core.runs.protocol import CancelRun, EndReport, PlaceStatus, ProgressReport
from frenzy.core.runs.views import QueueRow
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import FrenzyError, PermanentError, Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.run_files import GOOD_EXITS
from frenzy.core.values.telemetry import printable
from frenzy.ports import WorkersAccount, WorkersState, telemetry_records

_CANCEL_GRACE_S: Final = 2.0
# Airflow gives on_kill 30 s.
_CANCEL_PATIENCE_S: Final = 20.0
_RESULT_PATIENCE_S: Final = 2.0
# A store that throttles keeps the account of a training that is done from being read, not for long.
_STORE_PATIENCE_S: Final = 60.0
_SETTINGS_RETRY_S: Final = 5.0
# In place of an attempt's number: that of the attempt which is placed.
PLACED: Final = 0
UNTIL_ANSWERED_S: Final = 1e9
# The event loop itself keeps only weak references to tasks.
_unfinished: set[asyncio.Task[None]] = set()
# States of a task that a person has ended; in any other it was cleared and runs again.
_ENDED_BY_HAND: Final = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})
_DEFERRED: Final = "deferred"


class RunTrigger(BaseTrigger):
    """A trigger of one run; subclasses say what it waits for."""

    def __init__(self, *, run_key: str, conn_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's
        self.run_key = run_key
        self.conn_id = conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {"run_key": self.run_key, "conn_id": self.conn_id}

    async def send(self, call: Call[Any], *, patience_s: float = 10.0) -> Any:
        """The reply to ``call``. Raises PermanentError, or TemporaryError after ``patience_s``."""
        client = await async_api_client(self.conn_id)
        return await client.send(call, patience_s=patience_s)

    async def reach(self, read: Callable[[], Workers] = workers, retry_s: float = _SETTINGS_RETRY_S) -> Workers:
        """The workers' directory and launcher; waits while the settings are refused or cannot be read."""
        while True:
            try:
                return await asyncio.to_thread(read)
            except FrenzyError as error:
                self.log.warning("%s", error)
            await asyncio.sleep(retry_s)

    async def on_kill(self) -> None:
        """A person ended the task: cancel the run. A task that was cleared, or waits in another triggerer, goes on.

        The triggerer cancels a trigger again every second until it is through, this method
        included: the work is a task of its own, which that does not reach.
        """
        work = asyncio.get_running_loop().create_task(self._after_kill())
        _unfinished.add(work)
        work.add_done_callback(_unfinished.discard)
        await asyncio.shield(work)

    async def _after_kill(self) -> None:
        try:
            state, trigger_id = await self._task_now()
            is_over = state in _ENDED_BY_HAND and await self.has_come()
        except FrenzyError as error:
            self.log.warning("The state of %s is not known, so nothing is ended: %s", self.task_id, error)
            return
        if state == _DEFERRED and trigger_id == self.trigger_id:
            self.log.info("Another triggerer has this trigger now.")
        elif state not in _ENDED_BY_HAND:
            await self.let_go()
        elif not is_over:
            await self.cancel()

    async def cancel(self) -> None:
        await self.send(api.cancel(self.run_key, CancelRun(reason=self.ended_by_hand)), patience_s=_CANCEL_PATIENCE_S)

    @property
    def ended_by_hand(self) -> Reason:
        return Reason(code=ReasonCode.CANCELLED_BY_USER, detail=f"Task {self.task_id} was ended in Airflow.")

    async def let_go(self) -> None:
        """The task was cleared; nothing to do unless a subclass says so."""

    async def has_come(self) -> bool:
        """Whether the ledger has what is waited for: then the task ended from this trigger in another triggerer.

        Asked however long it takes. Raises PermanentError.
        """
        raise NotImplementedError

    async def _task_now(self) -> tuple[str | None, int | None]:
        """The state of the task in Airflow and its trigger, however long that cannot be asked. Raises PermanentError.

        Asked over HTTP: the triggerer's own way takes its first caller many seconds.
        """
        task = self.task_instance
        assert task is not None  # nothing but tasks waits for these triggers
        map_index = -1 if task.map_index is None else task.map_index
        call = task_instance(task.dag_id, task.run_id, task.task_id, map_index)
        try:
            found = await self.send(call, patience_s=UNTIL_ANSWERED_S)
        except NotFoundError:
            return "removed", None
        return found["state"], (found["trigger"] or {}).get("id")


class PlaceTrigger(RunTrigger):
    """Ends the task when the run is placed; hands a refusal back to the task.

    Fires {"reason": ...} when the run is refused or cancelled, {"waiting_s": ...} when it has waited so long as
    ``notice_after_s``.
    """

    def __init__(self, *, notice_after_s: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.notice_after_s = notice_after_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, {**arguments, "notice_after_s": self.notice_after_s}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        reach = await self.reach()
        waiting = WaitingRuns.of(await async_api_client(self.conn_id), reach.settings.poll_s)
        last: Reason | None = None
        while True:
            try:
                row = await waiting.row(self.run_key)
                if row is None:
                    event = await self._event()
                    if event is not None:
                        yield event
                        return
                elif row.reason is not None and row.reason != last:
                    last = row.reason
                    self.log.info("Position %d in the queue. %s", row.position, said(last))
                if row is not None and self._is_long(row):
                    yield TriggerEvent({"waiting_s": self.notice_after_s})  # type: ignore[no-untyped-call]
                    return
            except FrenzyError as error:
                self.log.warning("The queue could not be read: %s", error)
            await asyncio.sleep(workers().settings.poll_s)

    async def has_come(self) -> bool:
        view = await self.send(api.place(self.run_key), patience_s=UNTIL_ANSWERED_S)
        return bool(view.status is not PlaceStatus.WAITING)

    def _is_long(self, row: QueueRow) -> bool:
        return self.notice_after_s is not None and time.time() - row.waiting_since_s >= self.notice_after_s

    async def _event(self) -> TriggerEvent | None:
        view = await self.send(api.place(self.run_key))
        if view.status is PlaceStatus.WAITING:
            return None
        if view.status is PlaceStatus.PLACED:
            self.log.info("Placed: %s on %s.", view.spec.plan.plan_id, nodes_of(view.spec))
            return TaskSuccessEvent(xcoms={"return_value": placed(view.spec)})
        return TriggerEvent({"reason": encode(view.reason)})  # type: ignore[no-untyped-call]  # Airflow's


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an attempt's workers ended: what the launcher knows, and what they left themselves."""

    account: WorkersAccount
    result: AttemptResult | None

    def __str__(self) -> str:
        known = f"{said(self.account.reason)}; " if self.account.reason is not None else ""
        if self.result is None:
            return f"{known}they left no result"
        step = f"step {self.result.last_step} of {self.result.total_steps}"
        return printable(f"{known}exit code {self.result.exit_code} at {step}. {self.result.detail}".strip())


class AttemptTrigger(RunTrigger):
    """A trigger of one attempt. Its launch spec is the ledger's: the run directory is the workers' to write.

    attempt: its number, from 1; PLACED for the one that is placed when the ledger is first asked.
    """

    def __init__(self, *, run_key: str, attempt: int = PLACED, conn_id: str) -> None:
        super().__init__(run_key=run_key, conn_id=conn_id)
        self.attempt = attempt
        self._spec: LaunchSpec | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        classpath, arguments = super().serialize()
        return classpath, {**arguments, "attempt": self.attempt}

    async def spec(self) -> LaunchSpec:
        """The attempt's spec, however long the ledger cannot be asked. Raises PermanentError once it has ended."""
        reach = await self.reach()
        while True:
            try:
                spec = await self.spec_now()
            except FrenzyError as error:
                self.log.warning("The ledger could not be asked for the attempt: %s", error)
            else:
                if spec is not None:
                    return spec
                raise PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail="The attempt ended before it began."))
            await asyncio.sleep(reach.settings.poll_s)

    async def spec_now(self) -> LaunchSpec | None:
        """The attempt's spec; None once the ledger has ended it. Raises FrenzyError where it cannot be asked."""
        if self._spec is None:
            try:
                spec = (await self.send(api.place(self.run_key))).spec
            except NotFoundError:
                return None
            if spec is not None and self.attempt in (PLACED, spec.attempt):
                self.attempt, self._spec = spec.attempt, spec
        return self._spec

    async def wait_for_end(self, spec: LaunchSpec, *, patience_s: float) -> Ended:
        """What is known of the workers once they are proved gone.

        patience_s: how long from then a result that cannot be read is tried again.
        """
        gone_since_s: float | None = None
        waiting: Reason | None = None
        while True:
            try:
                account, result, is_read = await asyncio.to_thread(self._look, spec)
            except Exception as error:
                self.log.warning("The workers could not be looked at: %s", error)
                account, result, is_read = WorkersAccount(state=WorkersState.UNKNOWN), None, False
            if account.waiting is not None and account.waiting != waiting:
                waiting = account.waiting
                self.log.info("The workers wait. %s", said(waiting))
            if account.state in (WorkersState.GONE, WorkersState.NOT_STARTED):
                gone_since_s = time.monotonic() if gone_since_s is None else gone_since_s
                allowed_s = _RESULT_PATIENCE_S if is_read else patience_s
                if result is not None or time.monotonic() - gone_since_s > allowed_s:
                    return Ended(account=account, result=result)
            await asyncio.sleep(workers().settings.poll_s)

    def _look(self, spec: LaunchSpec) -> tuple[WorkersAccount, AttemptResult | None, bool]:
        """What is known of the workers, and whether their result could be read, if there is one.

        Without texts that only they are to read: where they stand in what they were told, which the ledger gives to
        nobody else. Nothing else is taken from there.
        """
        reach = workers()
        account = reach.launcher.account(spec)
        try:
            result, is_read = reach.runs.result(self.run_key, self.attempt), True
        except Exception as error:
            self.log.warning("The result of %s attempt %d could not be read: %r", self.run_key, self.attempt, error)
            result, is_read = None, False
        if not spec.masked:
            return account, result, is_read
        try:
            told = workers().runs.spec(self.run_key, self.attempt)
        except Exception:  # of a folder that the workers wrote
            told = None
        if told is None:
            return account, result, is_read
        return without_masked((account, result, is_read), replace(told, masked=spec.masked))

    async def report_end(self, ended: Ended) -> None:
        """Tell the ledger, however long it takes: its GPUs are free only then. Then remove what is left."""
        self.log.info("The workers are gone: %s", ended)
        report = EndReport(
            result=ended.result,
            reason=ended.account.reason,
            lost_nodes=ended.account.lost_nodes,
            progress=await self._last_account(),
        )
        if await self._reported(report):
            await self._remove()

    async def _reported(self, report: EndReport) -> bool:
        while True:
            try:
                await self.send(api.end(self.run_key, self.attempt, report))
                return True
            except PermanentError as error:
                self.log.error("The ledger refused the end of attempt %d: %s", self.attempt, error)
                return False
            except FrenzyError as error:
                self.log.warning("The end of attempt %d is not reported yet: %s", self.attempt, error)
            await asyncio.sleep(workers().settings.poll_s)

    async def _remove(self) -> None:
        """Reconciliation removes what this does not."""
        try:
            await asyncio.to_thread(workers().launcher.remove, self.run_key, self.attempt)
        except Exception as error:
            self.log.warning("What is left of attempt %d could not be removed: %s", self.attempt, error)

    async def _last_account(self) -> ProgressReport | None:
        """The attempt's telemetry, folded: its last steps came after the monitor's last look."""
        try:
            view = await self.send(api.run_view(self.run_key))
            attempt = next(each for each in view.attempts if each.attempt == self.attempt)
            bounds = bounds_of(view.run, attempt, time.time())
            return await asyncio.to_thread(self._progress, attempt, bounds)
        except Exception as error:
            self.log.warning("The attempt's telemetry could not be read to its end: %s", error)
            return None

    def _progress(self, attempt: Attempt, bounds: Bounds) -> ProgressReport | None:
        """Of an attempt with many records only what the ledger has not been told of: GPUs are held meanwhile."""
        runs = workers().runs
        since = untold(attempt)
        records = believed(tuple(telemetry_records(runs, self.run_key, self.attempt, since)), bounds).records
        saved = runs.newest_checkpoint(self.run_key)
        if not records and not since.steps:
            return None
        found = progress_of(records, num_ranks=bounds.num_ranks, checkpoint_step=saved, policy=MonitorPolicy())
        if not since.steps:
            return found
        # What the ledger knows is of many steps, and says more than the last ones.
        return replace(found, step_time_s=None, growth_step=None, explained_peak_bytes=None)

    async def has_come(self) -> bool:
        view = await self.send(api.run_view(self.run_key), patience_s=UNTIL_ANSWERED_S)
        return not any(each.is_live and self.attempt in (PLACED, each.attempt) for each in view.attempts)

    async def cancel(self) -> None:
        """Stop the workers at once, then free their GPUs: nobody else may be there to do it."""
        reach = await asyncio.to_thread(workers)
        spec = await self.spec_now()
        if spec is None:
            await super().cancel()
            return
        stop = asyncio.to_thread(reach.stop, spec, grace_s=_CANCEL_GRACE_S, reason=self.ended_by_hand, log=self.log)
        await asyncio.gather(super().cancel(), stop, return_exceptions=True)
        end = self.wait_for_end(spec, patience_s=_RESULT_PATIENCE_S)
        ended = await asyncio.wait_for(end, _CANCEL_PATIENCE_S)
        await self.report_end(ended)


class LaunchTrigger(AttemptTrigger):
    """Ends the launch task when the attempt's workers are gone and the ledger knows it.

    The task succeeds when the trainer finished or stopped on request, else it fails.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            spec = await self.spec()
        except PermanentError as error:
            self.log.error("%s", error)
            yield TaskFailedEvent()
            return
        ended = await self.wait_for_end(spec, patience_s=_STORE_PATIENCE_S)
        await self.report_end(ended)
        yield _launch_event(self.attempt, ended.result)

    async def let_go(self) -> None:
        """Cleared: save and stop, so that the task's next try sees the end and the run goes on from there."""
        reach = await asyncio.to_thread(workers)
        spec = await self.spec_now()
        if spec is not None:
            await asyncio.to_thread(reach.launcher.stop, spec, grace_s=reach.settings.stop_grace_s)


class MonitorTrigger(AttemptTrigger):
    """Watches one attempt until the ledger says that it has ended."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            watch = await self._watch(await self.spec(), workers())
        except PermanentError as error:
            self.log.info("Nothing to watch: %s", error)
            yield TaskSuccessEvent()
            return
        while not watch.ended:
            try:
                await watch.look()
            except NotFoundError:
                break
            except FrenzyError as error:
                self.log.warning("The ledger could not be told: %s", error)
            except Exception:
                self.log.exception("This look failed; the next may not.")
            await asyncio.sleep(workers().settings.poll_s)
        yield TaskSuccessEvent(xcoms={"return_value": watch.summary()})

    async def _watch(self, spec: LaunchSpec, reach: Workers) -> Watch:
        view = await self.send(api.run_view(self.run_key), patience_s=UNTIL_ANSWERED_S)
        client: AsyncApiClient = await async_api_client(self.conn_id)
        return Watch(spec=spec, view=view, workers=reach, client=client, log=self.log)


def placed(spec: LaunchSpec) -> dict[str, Any]:
    """What the place task leaves in its XCom."""
    return {"run_key": spec.run_key, "attempt": spec.attempt, "plan": spec.plan.plan_id, "nodes": nodes_of(spec)}


def nodes_of(spec: LaunchSpec) -> str:
    return ", ".join(f"{each.num_gpus} on {each.node}" for each in spec.placement.allocations)


def _launch_event(attempt: int, result: AttemptResult | None) -> TriggerEvent:
    xcoms = {"return_value": {"attempt": attempt, "result": encode(result)}}
    if result is not None and result.exit_code in GOOD_EXITS:
        return TaskSuccessEvent(xcoms=xcoms)
    return TaskFailedEvent(xcoms=xcoms)
