"""From what a script's agent says to what monitors read: step records, checkpoints, and the request to stop."""

from __future__ import annotations

import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.run_files import ExitCode, RunPaths, how_ended
from frenzy.core.values.telemetry import SAVING, StepRecord
from frenzy.core.values.units import MIB, format_bytes
from frenzy.core.values.workload import believed_releases
from frenzy.trainer import heartbeats
from frenzy.trainer.launch.script.checkpoints import ScriptCheckpoint, record
from frenzy.trainer.launch.script.environment import ScriptRank
from frenzy.trainer.launch.script.rank_work import RankWork
from frenzy.trainer.launch.script.reports import Report, ReportFile
from frenzy.trainer.loop.control import ControlFile
from frenzy.trainer.telemetry.process_memory import ProcessMemory
from frenzy.trainer.telemetry.shared_progress import SharedProgress
from frenzy.trainer.telemetry.writer import NodeTelemetry

logger = logging.getLogger("frenzy.trainer")

_CONTROL_S: Final = 0.25
_BEAT_S: Final = 5.0
_LONGEST_REFUSAL: Final = 500
# Of C++ threads, streams and contexts that a library left to the end of the process.
_CRASHES: Final = tuple(128 + each for each in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV))
# Without a step for so long a script saves, evaluates, or hangs.
_QUIET_S: Final = 10.0
# Of all ranks between two signs: more than what only watches and logs takes.
_LEAST_WORK_S: Final = 0.25
_LEAST_BYTES: Final = 4 * MIB
# A rank that turns round and round for another one takes processor time too.
_LONGEST_COMPUTING_S: Final = 3600.0


class RankWatch:
    """One rank: its reports become its records. baseline_bytes: of a virtual GPU's process before it has a model."""

    def __init__(
        self, rank: ScriptRank, pid: int, board: SharedProgress, baseline_bytes: int, telemetry: NodeTelemetry
    ) -> None:
        self._rank, self.pid, self._board, self._baseline_bytes = rank, pid, board, baseline_bytes
        self._reports = ReportFile(rank.reports)
        self._memory = ProcessMemory(pid)
        self._telemetry = telemetry
        self._is_virtual = rank.spec.gpu.kind is DeviceKind.VIRTUAL
        self.has_agent = self.is_stopping = self._has_ended = False
        self.stepped_s: float | None = None
        self.peak_bytes = 0
        self.refusal: str | None = None
        self.releases: dict[str, str] = {}

    def read(self) -> None:
        """Take over what was said since the last call."""
        for each in self._reports.new():
            self._take(each)

    def close(self) -> None:
        self.read()
        self._memory.close()

    def judged(self, code: int) -> int:
        """``code``, but 0 of a rank whose libraries crashed after the script had reached its end."""
        self.read()
        if not self._has_ended or code not in _CRASHES:
            return code
        logger.warning("rank %d: its script had ended; %s while it shut down", self._rank.rank, how_ended(code))
        return int(ExitCode.DONE)

    def ask_to_end(self) -> None:
        """SIGTERM, to a script that nothing else reaches."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def _take(self, report: Report) -> None:
        if report.kind == "hello":
            self.has_agent = True
            self.releases = believed_releases(report.content.get("releases"))
            self._begin(report)
        elif report.kind == "stopping":
            self.is_stopping = True
        elif report.kind == "step":
            self._step(report)
        elif report.kind == "checkpoint":
            self._checkpoint(report)
        elif report.kind == "ended":
            self._has_ended = True
        elif report.kind == "refused":
            self.refusal = " ".join(report.text("why").split())[:_LONGEST_REFUSAL]

    def _begin(self, report: Report) -> None:
        """From here on a virtual GPU's memory counts: after the script's libraries, before its model."""
        held = report.count("data_bytes")
        if not self._is_virtual or held is None:
            return
        self._baseline_bytes = held
        bound(self.pid, held + self._rank.spec.gpu.memory_bytes)
        self._board.take_peak(self._rank.local_rank)

    def _step(self, report: Report) -> None:
        local, loss = self._rank.local_rank, report.number("loss")
        if report.step <= self._board.last_step(local):
            return
        is_first, self.stepped_s = self.stepped_s is None, time.monotonic()
        step_s = max(0.0, report.number("step_time_s") or 0.0)
        tokens = report.number("tokens") or 0.0
        peaks, capacity = self._memory_of(report)
        self.peak_bytes = max(self.peak_bytes, peaks.allocated_bytes)
        self._board.set_progress(local, step=report.step, loss=float("nan") if loss is None else loss)
        total = report.count("total_steps")
        if total:
            self._board.set_total(local, total)
        self._telemetry.add(
            StepRecord(
                rank=self._rank.rank,
                step=report.step,
                time_s=time.time(),
                loss=loss,
                step_time_s=step_s,
                tokens_per_s=tokens / step_s if step_s else 0.0,
                peaks=peaks,
                capacity_bytes=capacity,
                num_alloc_retries=report.count("num_alloc_retries") or 0,
                num_ooms=report.count("num_ooms") or 0,
                learning_rate=report.number("learning_rate") or 0.0,
                grad_norm=report.number("grad_norm"),
                host_rss_bytes=self._resident(),
                releases=self.releases if is_first and self._rank.rank == 0 else {},
            )
        )

    def _memory_of(self, report: Report) -> tuple[PeakMemory, int]:
        """(peaks of the step, capacity): of a card what its allocator says, of a virtual GPU what was sampled."""
        gpu = self._rank.spec.gpu
        if not self._is_virtual:
            allocated, reserved, used = (
                report.count(name) or 0 for name in ("allocated_bytes", "reserved_bytes", "device_used_bytes")
            )
            total = report.count("device_bytes") or gpu.memory_bytes
            peaks = PeakMemory(allocated_bytes=allocated, reserved_bytes=reserved, device_used_bytes=used)
            return peaks, min(total, gpu.memory_bytes)
        now = max(0, self._data() - self._baseline_bytes)
        peak = max(now, self._board.take_peak(self._rank.local_rank) - self._baseline_bytes)
        return PeakMemory(allocated_bytes=peak, reserved_bytes=peak, device_used_bytes=now), gpu.memory_bytes

    def _checkpoint(self, report: Report) -> None:
        if self._rank.rank != 0:
            return
        try:
            kept = record(
                self._rank.spec, ScriptCheckpoint(step=report.step, path=report.text("path")), self._rank.scratch
            )
        except Exception as error:  # whatever the script named, its run goes on
            logger.warning("the checkpoint of step %d could not be recorded: %s", report.step, error)
            return
        if kept:
            self._board.set_checkpoint(self._rank.local_rank, report.step)

    def _data(self) -> int:
        try:
            return self._memory.data_bytes()
        except OSError:  # it has ended meanwhile
            return 0

    def _resident(self) -> int:
        try:
            return self._memory.resident_bytes()
        except (OSError, IndexError):
            return 0


class NodeWatch:
    """All ranks of this machine: called at each turn of the launcher's supervision."""

    def __init__(
        self,
        watches: Mapping[int, RankWatch],
        rank: ScriptRank,
        stop_received: Callable[[], bool],
        telemetry: NodeTelemetry,
    ) -> None:
        self.watches, self._rank, self._stop_received, self._telemetry = watches, rank, stop_received, telemetry
        self._control = ControlFile(RunPaths(rank.spec.run_dir).control(rank.spec.attempt))
        self._asked_s = self._beat_s = 0.0
        self._work = RankWork([each.pid for each in watches.values()])
        self._worked_s, self._moved_s = 0.0, float("-inf")
        self._has_ended_them = False

    def turn(self) -> None:
        """Read what ranks say, pass on what is asked of them, and tell that something goes on."""
        for each in self.watches.values():
            each.read()
        self._telemetry.turn()
        now = time.monotonic()
        if now - self._asked_s >= _CONTROL_S:
            self._asked_s = now
            self._pass_on()
        if now - self._beat_s >= _BEAT_S:
            self._beat_s = now
            self._beat(now)

    @property
    def is_asked_to_stop(self) -> bool:
        return self._rank.stop_file.exists()

    def close(self) -> None:
        for each in self.watches.values():
            each.close()
        self._telemetry.close()
        peak = max((each.peak_bytes for each in self.watches.values()), default=0)
        if peak:
            logger.info("peak memory: %s of %s", format_bytes(peak), format_bytes(self._rank.spec.gpu.memory_bytes))

    def _pass_on(self) -> None:
        if self._stop_received() or self._control.asks_to_stop():
            self._rank.stop_file.touch()
        if self._stop_received() and not self._has_ended_them:
            self._has_ended_them = True
            for each in self.watches.values():
                if not each.has_agent:
                    each.ask_to_end()

    def _beat(self, now: float) -> None:
        """Where no step comes, a script shows progress only by the time that it takes and the bytes that it moves."""
        worked_s, num_bytes = self._work.grown()
        self._worked_s += worked_s
        if num_bytes >= _LEAST_BYTES:
            self._moved_s = now
        steps_s = [each.stepped_s for each in self.watches.values() if each.stepped_s is not None]
        if steps_s and now - max(steps_s) < _QUIET_S:
            return
        if steps_s:
            computes = worked_s >= _LEAST_WORK_S and now - max(*steps_s, self._moved_s) < _LONGEST_COMPUTING_S
        else:
            computes = worked_s > 0
        if computes or self._moved_s == now:
            doing = SAVING if any(each.is_stopping for each in self.watches.values()) else "running the script"
            heartbeats.beat(f"{doing}: seconds of processor time", int(self._worked_s))


def bound(pid: int, num_bytes: int) -> None:
    """Let the process ``pid`` have ``num_bytes`` of data memory at most: what a virtual GPU is."""
    with suppress(ProcessLookupError, PermissionError):
        hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
        resource.prlimit(pid, resource.RLIMIT_DATA, (num_bytes, hard))
