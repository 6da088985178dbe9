"""The launcher's side: a process for each tracker, which it hands the records of rank 0 and never waits for."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, Reason
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import StepRecord
from frenzy.trainer import files
from frenzy.trainer.launch.child import fork
from frenzy.trainer.loop.control import ControlFile
from frenzy.trainer.trackers.following import ENDED, Following, follow
from frenzy.trainer.trackers.mlflow_tracker import MlflowTracker
from frenzy.trainer.trackers.tensorboard_tracker import TensorboardTracker
from frenzy.trainer.trackers.tracker import Ending, TrackedAttempt, Tracker
from frenzy.trainer.trackers.wandb_tracker import WandbTracker

logger = logging.getLogger("frenzy.trainer")

_TRACKERS: Final[Mapping[str, Callable[[TrackedAttempt], Tracker]]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "tensorboard": TensorboardTracker,
}
# What waits for a process that still loads its library, or is stuck; the oldest go first.
_MOST_LINES: Final = 20_000
# How long an attempt's end waits for trackers: less where it stops on request, and others wait for its GPUs.
_GRACE_S: Final = {Ending.DONE: 30.0, Ending.FAILED: 10.0, Ending.GOES_ON: 5.0, Ending.CANCELLED: 5.0}
_POLL_S: Final = 0.05
_MOST_NOTE_BYTES: Final = 16 * 1024
# A shorter value stands in too many sentences by chance.
_LEAST_HIDDEN: Final = 5


class Tracking:
    """The trackers of an attempt. Calls return at once, whatever a tracker does; but ``end`` waits a little."""

    def __init__(self, followers: Sequence[_Follower] = (), control: ControlFile | None = None) -> None:
        self._followers, self._control = followers, control

    def add(self, record: StepRecord) -> None:
        if record.rank == 0 and self._followers:
            line = f"{codec.dumps(record)}\n".encode()
            for each in self._followers:
                each.lines.append(line)

    def turn(self) -> None:
        for each in self._followers:
            each.pass_on()

    def end(self, exit_code: int) -> None:
        """Let trackers end, and end those that do not in time."""
        if not self._followers:
            return
        ending = Ending.of(exit_code, self._stop_reason())
        for each in self._followers:
            each.lines.append(f"{ENDED}{ending}\n".encode())
        until_s = time.monotonic() + _GRACE_S[ending]
        while any(each.is_alive() for each in self._followers) and time.monotonic() < until_s:
            self.turn()
            time.sleep(_POLL_S)
        for each in self._followers:
            each.kill()

    def _stop_reason(self) -> Reason | None:
        try:
            return None if self._control is None else self._control.stop_reason()
        except Exception as error:  # of a store that is away
            logger.warning("why the attempt was to stop could not be read: %s", error)
            return None


class _Follower:
    """A tracker's process, and the lines that it is still to be handed."""

    def __init__(self, kind: str, pid: int, writer: int) -> None:
        self._kind, self._pid, self._writer = kind, pid, writer
        self._has_ended = False
        self._part = b""
        self.lines: deque[bytes] = deque(maxlen=_MOST_LINES)
        os.set_blocking(writer, False)

    def pass_on(self) -> None:
        """As much as the pipe takes."""
        with suppress(BlockingIOError, BrokenPipeError):
            while self._part or self.lines:
                self._part = self._part or self.lines.popleft()
                self._part = self._part[os.write(self._writer, self._part) :]

    def is_alive(self) -> bool:
        if not self._has_ended:
            self._has_ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0
        return not self._has_ended

    def kill(self) -> None:
        if self.is_alive():
            logger.warning("%s took too long to end, and was ended", self._kind)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._writer)


def begin_tracking(spec: LaunchSpec, node_rank: int, logs: Path, scratch: Path) -> Tracking:
    """Start the trackers of the job, where rank 0 is; to be called after ranks were forked, before threads are made."""
    if node_rank != 0 or spec.rehearsal is not None:
        return Tracking()
    followers = [_begun(TrackedAttempt(spec, each, scratch), logs) for each in spec.job.tracking]
    return Tracking(followers, ControlFile(RunPaths(spec.run_dir).control(spec.attempt)))


def _begun(attempt: TrackedAttempt, logs: Path) -> _Follower:
    reader, writer = os.pipe()

    def main() -> int:
        os.close(writer)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
        # Only what the job refers to: no passwords of whoever Airflow runs as.
        os.environ["NETRC"] = os.devnull
        follow(reader, _following(attempt))
        return 0

    pid = fork(main, log_file=logs / f"tracker-{attempt.tracker.kind}.log")
    os.close(reader)
    return _Follower(attempt.tracker.kind, pid, writer)


def _following(attempt: TrackedAttempt) -> Following:
    place = RunPaths(attempt.spec.run_dir).tracked(attempt.tracker.kind)
    return Following(
        _TRACKERS[attempt.tracker.kind](attempt),
        _known(attempt, place),
        lambda known: files.write_text(place, codec.dumps(known)),
        num_gpus=attempt.spec.plan.num_gpus,
        keep_files=attempt.keep_files,
        hidden=own_values(attempt.spec.job, os.environ),
    )


def own_values(job: TrainingJob, environ: Mapping[str, str]) -> list[str]:
    """The values of the job's own variables, line by line, the longest first."""
    lines = (line.strip() for name in (*job.env, *job.secrets) for line in environ.get(name, "").splitlines())
    return sorted({line for line in lines if len(line) >= _LEAST_HIDDEN}, key=len, reverse=True)


def _known(attempt: TrackedAttempt, place: str) -> TrackedRun:
    """What earlier attempts left; else a run of its own, whose name no other installation has."""
    try:
        found = files.patiently(lambda: _note(place))
        if found is not None:
            return codec.loads(TrackedRun, found)
    except ContractError as error:
        logger.warning("%s is passed over: %s", place, error)
    return TrackedRun(kind=attempt.tracker.kind, tracker_run=f"{attempt.spec.run_key}-{secrets.token_hex(4)}")


def _note(place: str) -> bytes | None:
    try:
        return files.read_bytes(place, most_bytes=_MOST_NOTE_BYTES, links=False)
    except FileNotFoundError:
        return None
