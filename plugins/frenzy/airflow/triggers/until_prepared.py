"""What waits for the pod that prepares a run's data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from frenzy.airflow.tasks.preparation import STOPPED, PreparingWatch
from frenzy.airflow.tasks.workers import Workers, workers
from frenzy.airflow.triggers.triggers import UNTIL_ANSWERED_S, RunTrigger
from frenzy.api import endpoints as api
from frenzy.core.runs.protocol import DirectiveKind, PreparingReport
from frenzy.core.values.codec import encode
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.prepared_data import PreparingResult


class PrepareTrigger(RunTrigger):
    """Hands the end of the process of that ``number`` back to the task, which tells the ledger of it."""

    def __init__(self, *, run_key: str, number: int, conn_id: str) -> None:
        super().__init__(run_key=run_key, conn_id=conn_id)
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        classpath, arguments = super().serialize()
        return classpath, {**arguments, "number": self.number}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        reach, watch = await self.reach(), None
        while True:
            try:
                watch = watch or await self._watch(reach)
                result = STOPPED if watch is None else await self._look(watch, reach)
                if result is not None:
                    yield TriggerEvent(encode(result))  # type: ignore[no-untyped-call]  # Airflow's
                    return
            except FrenzyError as error:
                self.log.warning("This look failed; the next may not: %s", error)
            except Exception:
                self.log.exception("This look failed; the next may not.")
            await asyncio.sleep(reach.settings.poll_s)

    async def _watch(self, reach: Workers) -> PreparingWatch | None:
        """None where the run needs no data any more, or another process prepares them."""
        directive = await self.send(api.preparing(self.run_key, PreparingReport(begins=True, found=self.number)))
        spec = directive.spec
        return None if spec is None or spec.number != self.number else PreparingWatch(spec, reach, self.log)

    async def _look(self, watch: PreparingWatch, reach: Workers) -> PreparingResult | None:
        result = await asyncio.to_thread(watch.look)
        report = watch.due() if result is None else None
        if report is None:
            return result
        directive = await self.send(api.preparing(self.run_key, report))
        if directive.kind is DirectiveKind.CONTINUE:
            return None
        await asyncio.to_thread(reach.preparer.stop, self.run_key)
        return STOPPED

    async def has_come(self) -> bool:
        return (await self.send(api.run_view(self.run_key), patience_s=UNTIL_ANSWERED_S)).run.prepared is not None

    async def cancel(self) -> None:
        """The task was ended by hand; one that was cleared finds the pod at work."""
        stop = asyncio.to_thread(lambda: workers().preparer.stop(self.run_key))
        await asyncio.gather(super().cancel(), stop, return_exceptions=True)
