"""Watches the ranks of one machine: samples their memory, passes on a stop, finds the first failure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from frenzy.core.values.run_files import GOOD_EXITS
from frenzy.trainer.launch.child import exit_code_of
from frenzy.trainer.outcome import says_little
from frenzy.trainer.telemetry.process_memory import ProcessMemory, num_oom_kills
from frenzy.trainer.telemetry.shared_progress import SharedProgress

_SAMPLE_INTERVAL_S: Final = 0.001
_WATCH_INTERVAL_S: Final = 0.02
_FAILURE_GRACE_S: Final = 5.0


@dataclass(slots=True)
class Ended:
    """How the ranks ended: local rank to exit code, and whose failure explains it (None: none failed).

    num_oom_kills: processes of this machine that the kernel killed for their memory meanwhile.
    """

    codes: dict[int, int] = field(default_factory=dict)
    first_failing: int | None = None
    killed_after_grace: bool = False
    num_oom_kills: int = 0


class Supervisor:
    """Runs until every child of ``pids`` (local rank to pid) has ended. each_turn: called every 20 ms meanwhile.

    judged: the exit code that the end of a local rank with some code counts as.
    """

    def __init__(
        self,
        pids: Mapping[int, int],
        board: SharedProgress,
        *,
        samples_memory: bool,
        stop_grace_s: float,
        stop_requested: Callable[[], bool],
        each_turn: Callable[[], None] = lambda: None,
        judged: Callable[[int, int], int] = lambda _rank, code: code,
    ) -> None:
        self._running = dict(pids)
        self._board = board
        self._memories = {rank: ProcessMemory(pid) for rank, pid in pids.items()} if samples_memory else {}
        self._stop_grace_s = stop_grace_s
        self._stop_requested = stop_requested
        self._each_turn, self._judged = each_turn, judged
        self._kill_at_s: float | None = None
        self._has_killed = False
        self._ended = Ended()

    def wait(self) -> Ended:
        """Block until all have ended. A request to stop is passed on once, then enforced."""
        watched_s, kills_before = 0.0, num_oom_kills()
        while self._running:
            self._sample()
            now = time.monotonic()
            if now - watched_s >= _WATCH_INTERVAL_S:
                watched_s = now
                self._collect(now)
                self._pass_on_stop(now)
                self._enforce(now)
                self._each_turn()
            time.sleep(_SAMPLE_INTERVAL_S if self._memories else _WATCH_INTERVAL_S)
        self._ended.num_oom_kills = num_oom_kills() - kills_before
        return self._ended

    def _sample(self) -> None:
        for rank, memory in list(self._memories.items()):
            if self._board.is_measuring(rank):
                try:
                    self._board.offer_peak(rank, memory.data_bytes())
                except OSError:
                    self._forget(rank)

    def _collect(self, now: float) -> None:
        new: dict[int, int] = {}
        for rank, pid in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                new[rank] = self._judged(rank, exit_code_of(status))
                del self._running[rank]
                self._forget(rank)
        self._ended.codes.update(new)
        failed = {rank: code for rank, code in new.items() if code not in GOOD_EXITS}
        if failed and self._ended.first_failing is None:
            self._kill_within(now, _FAILURE_GRACE_S)
        if failed and not self._has_killed:
            first = self._ended.first_failing
            known = {} if first is None else {first: self._ended.codes[first]}
            self._ended.first_failing = _most_telling({**known, **failed}, first=first)

    def _pass_on_stop(self, now: float) -> None:
        if self._stop_requested() and not self._board.stop_requested:
            self._board.request_stop()
            self._kill_within(now, self._stop_grace_s)

    def _kill_within(self, now: float, grace_s: float) -> None:
        self._kill_at_s = min(self._kill_at_s or float("inf"), now + grace_s)

    def _enforce(self, now: float) -> None:
        if self._kill_at_s is not None and now >= self._kill_at_s:
            self._ended.killed_after_grace |= self._ended.first_failing is None
            self._has_killed = True
            for pid in self._running.values():
                os.kill(pid, signal.SIGKILL)

    def _forget(self, rank: int) -> None:
        memory = self._memories.pop(rank, None)
        if memory is not None:
            memory.close()


def _most_telling(failed: Mapping[int, int], *, first: int | None) -> int:
    """Of failed ranks the one whose code says most; of equals the first that was found dead.

    When a rank dies, its peers fail for want of it, as plain crashes or broken exchanges, a moment later; and they may
    be gone before a rank that has much to say.
    """
    return min(failed, key=lambda rank: (says_little(failed[rank]), rank != first, rank))
