"""A preparer whose processes do what a test says."""

from __future__ import annotations

from collections.abc import Callable

from frenzy.core.values.prepared_data import PreparingSpec
from frenzy.ports import PreparerAccount, WorkersState


class FakePreparer:
    """Preparer of one process. on_start: what a started process does at once; on_stop: called before one is ended.

    accounts: what is known of each run's.
    """

    def __init__(self) -> None:
        self.on_start: Callable[[PreparingSpec], None] = lambda _: None
        self.on_stop: Callable[[str], None] = lambda _: None
        self.accounts: dict[str, PreparerAccount] = {}
        self.started: list[PreparingSpec] = []
        self.stopped: list[str] = []

    def found(self, run_key: str) -> int | None:
        if self._state(run_key) is not WorkersState.ALIVE:
            return None
        return max(each.number for each in self.started if each.run_key == run_key)

    def start(self, spec: PreparingSpec, tell: Callable[[str], None]) -> None:
        self.accounts[spec.run_key] = PreparerAccount(state=WorkersState.ALIVE)
        self.started.append(spec)
        tell("started")
        self.on_start(spec)

    def account(self, spec: PreparingSpec) -> PreparerAccount:
        return self.accounts.get(spec.run_key, PreparerAccount(state=WorkersState.NOT_STARTED))

    def stop(self, run_key: str) -> None:
        self.on_stop(run_key)
        self.stopped.append(run_key)
        self.accounts[run_key] = PreparerAccount(state=WorkersState.GONE)

    def remains(self) -> tuple[str, ...]:
        return tuple(sorted(key for key in self.accounts if self._state(key) is WorkersState.ALIVE))

    def _state(self, run_key: str) -> WorkersState | None:
        account = self.accounts.get(run_key)
        return None if account is None else account.state
