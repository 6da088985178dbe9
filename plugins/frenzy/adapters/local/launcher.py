"""Launcher on this machine: one detached supervisor for each attempt."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from frenzy.adapters.local.attempt_home import AttemptHome, SupervisorRecord
from frenzy.adapters.local.processes import processes_of, send, signal_all
from frenzy.adapters.local.worker_environment import helper_environment, worker_environment
from frenzy.core.errors import PermanentError, Reason, ReasonCode
from frenzy.core.hardware import DeviceKind
from frenzy.core.launch import LaunchSpec
from frenzy.ports import RunStore, WorkersAccount, WorkersState

_START_TIMEOUT_S: Final = 60.0
_SUPERVISOR: Final = "frenzy.adapters.local.supervisor"
TRAINER_COMMAND: Final = (sys.executable, "-m", "frenzy.trainer.launch")


class LocalLauncher:
    """Runs workers as processes of this machine; every node of a placement is this machine.

    environ: what workers may inherit, and where secrets are looked up. trainer_command: the node
    launcher, which is given ``--run-dir D --attempt N`` and starts the ranks of all nodes.
    """

    def __init__(
        self, runs: RunStore, *, environ: Mapping[str, str], trainer_command: Sequence[str] = TRAINER_COMMAND
    ) -> None:
        self._runs = runs
        self._environ = dict(environ)
        self._trainer_command = tuple(trainer_command)

    def launch(self, spec: LaunchSpec) -> str:
        """Start the workers, unless they were started or stopped before; a reference for people.

        Raises PermanentError when they cannot be started.
        """
        home = _home(spec)
        home.make()
        with home.locked():
            record = home.record() or self._start(spec, home)
        return record.reference

    def state(self, spec: LaunchSpec) -> WorkersState:
        """See WorkersState. UNKNOWN when the workers were started where this process cannot look.

        A request to stop that was made, but whose supervisor has died, is enforced from here.
        """
        home = _home(spec)
        record = home.record()
        if record is None:
            return WorkersState.NOT_STARTED
        where = _whereabouts(record)
        if where is not WorkersState.ALIVE or record.is_alive:
            return where
        if not processes_of(spec.run_key, spec.attempt):
            return WorkersState.GONE
        if home.stop_request() is not None:
            self._bury(spec, home)
        return WorkersState.ALIVE

    def account(self, spec: LaunchSpec) -> WorkersAccount:
        """The state, and since when they run: whatever else there is to know, the supervisor puts into the result."""
        record = _home(spec).record()
        return WorkersAccount(state=self.state(spec), running_since_s=None if record is None else record.started_s)

    def remove(self, run_key: str, attempt: int) -> None:
        """Processes that have ended leave nothing."""

    def remains(self) -> tuple[tuple[str, int], ...]:
        return ()

    def stop(self, spec: LaunchSpec, *, grace_s: float) -> None:
        """Ask the workers to end, and end them after ``grace_s``. Workers not yet started never will be."""
        home = _home(spec)
        home.make()
        home.request_stop(grace_s)
        with home.locked():
            record = home.record()
            if record is None:
                home.put_record(SupervisorRecord.here())
                return
        if self.state(spec) is WorkersState.ALIVE and record.pid is not None:
            send(record.pid, signal.SIGTERM, started=record.started)
            if grace_s <= 0:
                signal_all(spec.run_key, spec.attempt, signal.SIGKILL, but=(record.pid,))

    def _start(self, spec: LaunchSpec, home: AttemptHome) -> SupervisorRecord:
        environment = worker_environment(spec, self._environ)
        if self._runs.spec(spec.run_key, spec.attempt) is None:
            self._runs.put_spec(spec)
        self._run_supervisor([*_target(spec), *_gpus(spec), "--", *self._command(spec)], environment, home)
        record = home.record()
        if record is None:
            raise _not_started("it ended at once", home)
        return record

    def _bury(self, spec: LaunchSpec, home: AttemptHome) -> None:
        """Give the workers of a dead supervisor a new one, none of theirs, that ends them."""
        environment = helper_environment(self._environ)
        with home.locked():
            record = home.record()
            if record is not None and not record.is_alive:
                self._run_supervisor([*_target(spec), "--bury"], environment, home)

    def _command(self, spec: LaunchSpec) -> tuple[str, ...]:
        return (*self._trainer_command, "--run-dir", spec.run_dir, "--attempt", str(spec.attempt))

    def _run_supervisor(self, arguments: Sequence[str], environment: Mapping[str, str], home: AttemptHome) -> None:
        """Run the supervisor's module, which returns once the supervisor proper is on its own."""
        with (home.logs / "supervisor.log").open("ab") as log:
            try:
                subprocess.run(
                    [sys.executable, "-m", _SUPERVISOR, *arguments],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    check=True,
                    timeout=_START_TIMEOUT_S,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise _not_started(str(error), home) from error


def _whereabouts(record: SupervisorRecord) -> WorkersState:
    """ALIVE when ``record`` speaks of this machine and boot, so that a look at /proc can tell."""
    here = SupervisorRecord.here()
    if record.pid is None or (record.host == here.host and record.boot != here.boot):
        return WorkersState.GONE
    is_here = (record.host, record.namespace) == (here.host, here.namespace)
    return WorkersState.ALIVE if is_here else WorkersState.UNKNOWN


def _home(spec: LaunchSpec) -> AttemptHome:
    return AttemptHome.of(spec.run_dir, spec.run_key, spec.attempt)


def _target(spec: LaunchSpec) -> tuple[str, ...]:
    return ("--run-dir", spec.run_dir, "--run-key", spec.run_key, "--attempt", str(spec.attempt))


def _gpus(spec: LaunchSpec) -> tuple[str, ...]:
    if spec.gpu.kind is DeviceKind.VIRTUAL:
        return ()
    return ("--num-gpus", str(spec.placement.num_gpus), "--gpu-memory-bytes", str(spec.gpu.memory_bytes))


def _not_started(why: str, home: AttemptHome) -> PermanentError:
    detail = f"The supervisor of the workers could not be started: {why}."
    remedy = f"See {home.logs / 'supervisor.log'}."
    return PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))
