"""The run directory and the launcher as tasks and triggers use them: made once in each process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from frenzy.adapters.connection_settings import settings_of_airflow
from frenzy.core.values.errors import Reason
from frenzy.core.values.launch import AttemptResult, Control, ControlAction, LaunchSpec
from frenzy.ports import Launcher, Preparer, RunStore
from frenzy.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What reaches workers: their run directory, and what starts and stops them and who prepares their data."""

    settings: Settings
    runs: RunStore
    launcher: Launcher
    preparer: Preparer

    def result(self, run_key: str, attempt: int, log: Any, *, until_s: float = 0.0) -> AttemptResult | None:
        """The workers' own account; None also where reading it fails: what the launcher knows stands without it.

        until_s: as time.monotonic() tells it; so long it is tried again.
        """
        while True:
            try:
                return self.runs.result(run_key, attempt)
            except Exception as error:
                log.warning("The result of %s attempt %d could not be read: %r", run_key, attempt, error)
            if time.monotonic() >= until_s:
                return None
            time.sleep(self.settings.poll_s)

    def stop(self, spec: LaunchSpec, *, grace_s: float, reason: Reason | None, log: Any) -> None:
        """End the workers within ``grace_s``. Their trackers read why, which launchers may have written otherwise."""
        self.launcher.stop(spec, grace_s=grace_s)
        if reason is None:
            return
        control = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=reason)
        try:
            self.runs.put_control(spec.run_key, spec.attempt, control)
        except Exception as error:
            log.warning("Why %s attempt %d ends could not be written: %r", spec.run_key, spec.attempt, error)


_lent: list[Workers] = []


def workers(core_api: Callable[[], Any] | None = None) -> Workers:
    """Those of this installation's settings, or those in use (see ``using``).

    Not from an event loop at first: settings may be asked for over the network.

    core_api: makes the client of the Kubernetes API, where the caller has a connection of its own.
    """
    if _lent:
        return _lent[-1]
    return _installed() if core_api is None else _reaching(core_api)


@contextmanager
def using(reach: Workers) -> Iterator[None]:
    """Let every task and trigger of this process reach ``reach`` instead: for tests and trials."""
    _lent.append(reach)
    try:
        yield
    finally:
        _lent.remove(reach)


@cache
def _installed() -> Workers:
    return _reaching(None)


def _reaching(core_api: Callable[[], Any] | None) -> Workers:
    from frenzy import wiring

    settings = settings_of_airflow()
    return Workers(
        settings=settings,
        runs=wiring.run_store(settings),
        launcher=wiring.launcher(settings, core_api=core_api),
        preparer=wiring.preparer(settings),
    )
