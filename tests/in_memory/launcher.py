"""A launcher whose workers are played."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.in_memory.run_store import InMemoryRunStore

from frenzy.core.values.errors import FrenzyError, Reason
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.telemetry import StepRecord
from frenzy.ports import WorkersAccount, WorkersState


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerScript:
    """What scripted workers do: write ``records``, then end with ``result`` (None: leave none).

    obedient: a request to stop makes them end.
    """

    records: tuple[StepRecord, ...] = ()
    result: AttemptResult | None = None
    obedient: bool = True


class FakeLauncher:
    """Launcher whose workers follow a script; they end when told to ``finish`` or to stop."""

    def __init__(
        self, store: InMemoryRunStore | None = None, script: Callable[[LaunchSpec], WorkerScript] | None = None
    ) -> None:
        self._store = store
        self._script = script or (lambda _spec: WorkerScript())
        self._states: dict[tuple[str, int], WorkersState] = {}
        self._running_since_s: dict[tuple[str, int], float | None] = {}
        self._known: dict[tuple[str, int], WorkersAccount] = {}
        self._removed: set[tuple[str, int]] = set()
        self.refusal: FrenzyError | None = None  # what the next start is refused with
        self.launched: list[LaunchSpec] = []
        self.stopped: list[tuple[str, int, float]] = []

    def launch(self, spec: LaunchSpec) -> str:
        key = (spec.run_key, spec.attempt)
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if key not in self._states:
            self._states[key] = WorkersState.ALIVE
            self._running_since_s[key] = time.time()
            self.launched.append(spec)
            self._write_telemetry(spec)
        return f"fake:{spec.run_key}/{spec.attempt}"

    def state(self, spec: LaunchSpec) -> WorkersState:
        return self._states.get((spec.run_key, spec.attempt), WorkersState.NOT_STARTED)

    def account(self, spec: LaunchSpec) -> WorkersAccount:
        key = (spec.run_key, spec.attempt)
        account = WorkersAccount(state=self.state(spec), running_since_s=self._running_since_s.get(key))
        return self._known.get(key, account)

    def remove(self, run_key: str, attempt: int) -> None:
        self._removed.add((run_key, attempt))

    def remains(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self._states.keys() - self._removed))

    def stop(self, spec: LaunchSpec, *, grace_s: float) -> None:
        self.stopped.append((spec.run_key, spec.attempt, grace_s))
        if self._script(spec).obedient:
            self._states[spec.run_key, spec.attempt] = WorkersState.GONE

    def finish(self, spec: LaunchSpec) -> None:
        """The workers reach their end and leave the script's result."""
        result = self._script(spec).result
        if self._store is not None and result is not None:
            self._store.write_result(spec.run_key, spec.attempt, result)
        self._states[spec.run_key, spec.attempt] = WorkersState.GONE

    def lose(self, spec: LaunchSpec, reason: Reason, *lost_nodes: str) -> None:
        """The cluster takes the workers away; they leave nothing."""
        key = (spec.run_key, spec.attempt)
        self._states[key] = WorkersState.GONE
        self._known[key] = WorkersAccount(state=WorkersState.GONE, reason=reason, lost_nodes=lost_nodes)

    def begin(self, spec: LaunchSpec, running_since_s: float | None) -> None:
        """The workers have run since then, or, with None, wait for something still."""
        self._running_since_s[spec.run_key, spec.attempt] = running_since_s

    def lose_sight(self, spec: LaunchSpec) -> None:
        """From now on nothing can be proved about the workers."""
        self._states[spec.run_key, spec.attempt] = WorkersState.UNKNOWN

    def _write_telemetry(self, spec: LaunchSpec) -> None:
        if self._store is None:
            return
        for record in self._script(spec).records:
            self._store.write_chunk(spec.run_key, spec.attempt, (record,))
