"""What a node tells of its ranks' steps: small objects, whole ones only, readable while training.

The ranks hand their records to their launcher through a pipe: the launcher alone writes, for all of them. So no rank
waits for a store, and none that died or hangs hides another. ``latest`` is overwritten, the chunks of history are not.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import StepRecord, latest_text, lines_of, thinned
from frenzy.trainer import files

logger = logging.getLogger("frenzy.trainer")

_HISTORY_S: Final = 60.0
_STORE_S: Final = 2.0
# A folder of this machine may be written to as often as demonstrations and quick steps need it.
_LOCAL_S: Final = 0.4
# The longest pause after a store took nothing, several times on end.
_LONGEST_PAUSE_S: Final = 60.0
# Of each rank: who looks every few seconds sees every step; who looks less often sees groups of steps.
_NEWEST: Final = 32
_GROUPS: Final = 32
_MOST_IN_A_CHUNK: Final = 16_000
# Minutes that a store may be away without loss.
_MOST_WAITING: Final = 60
_READ_BYTES: Final = 1024**2


class RecordPipe:
    """Carries records from ranks to their launcher; made before the fork. A record is shorter than what stays whole."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._rest = b""

    def write(self, record: StepRecord) -> None:
        """Raises BrokenPipeError where there is no launcher any more."""
        os.write(self._writer, f"{codec.dumps(record)}\n".encode())

    def read(self) -> list[StepRecord]:
        """What was written since the last call."""
        with suppress(BlockingIOError):
            while found := os.read(self._reader, _READ_BYTES):
                self._rest += found
        *lines, self._rest = self._rest.split(b"\n")
        return [record for record in map(_record, lines) if record is not None]

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def _record(line: bytes) -> StepRecord | None:
    try:
        return codec.loads(StepRecord, line)
    except ContractError as error:
        logger.warning("a record of a step is lost: %s", error)
        return None


@dataclass(slots=True)
class _RankRecords:
    """Records of one rank: those that no chunk of history has yet, and the newest."""

    new: list[StepRecord] = field(default_factory=list)
    newest: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=_NEWEST))

    def add(self, record: StepRecord) -> None:
        self.new.append(record)
        self.newest.append(record)

    def snapshot(self) -> _RankRecords:
        """As it is now, for another thread."""
        return _RankRecords(self.new.copy(), self.newest.copy())

    def shown(self) -> list[StepRecord]:
        """The newest one by one, what else is new in groups of steps: some hundred records, however many are new."""
        older = self.new[:-_NEWEST]
        return _grouped(older) + self.new[-_NEWEST:] if older else list(self.newest)


def _grouped(records: list[StepRecord]) -> list[StepRecord]:
    """In whole groups of steps, and what is left at the end in smaller ones."""
    every = _power_of_two(len(records) / _GROUPS)
    if every == 1:
        return records
    cut = records[-1].step // every * every
    whole, rest = [each for each in records if each.step <= cut], [each for each in records if each.step > cut]
    return thinned(whole, every, keeps_last=False) + (_grouped(rest) if whole else thinned(rest, every))


class Follower(Protocol):
    """Who is handed the records as well."""

    def add(self, record: StepRecord) -> None: ...
    def turn(self) -> None: ...


class NodeTelemetry:
    """Puts the records of a node's ranks: the newest whenever there are new ones, but not too often, and history.

    ``turn`` is called many times a second; a thread does what may take long. History that a store did not take waits.
    beside: is handed the same.
    """

    def __init__(
        self,
        paths: RunPaths,
        attempt: int,
        node_rank: int,
        clock: Callable[[], float] = time.monotonic,
        thread: Executor | None = None,
        most_in_a_chunk: int = _MOST_IN_A_CHUNK,
        beside: Follower | None = None,
    ) -> None:
        self._beside = beside
        self._paths, self._attempt, self._node_rank, self._clock = paths, attempt, node_rank, clock
        self._interval_s = _STORE_S if files.local_path(paths.run_dir) is None else _LOCAL_S
        self._pause_s = self._interval_s
        self._ranks: dict[int, _RankRecords] = {}
        self._waiting: deque[list[StepRecord]] = deque(maxlen=_MOST_WAITING)
        self._most_in_a_chunk = most_in_a_chunk
        self._num_chunks = 0
        self._is_new = False
        self._put_s, self._history_s = float("-inf"), clock()
        self._thread = thread  # else made at the first turn, after the ranks were forked
        self._putting: Future[None] | None = None

    def add(self, record: StepRecord) -> None:
        self._ranks.setdefault(record.rank, _RankRecords()).add(record)
        self._is_new = True
        if self._beside is not None:
            self._beside.add(record)

    def turn(self) -> None:
        """Put what is due."""
        if self._beside is not None:
            self._beside.turn()
        now_s = self._clock()
        if not self._is_new or now_s - self._put_s < self._pause_s:
            return
        if self._putting is not None and not self._putting.done():
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="telemetry")
        if now_s - self._history_s >= _HISTORY_S:
            self._end_chunk()
        self._is_new, self._put_s = False, now_s
        self._putting = self._thread.submit(self._put, self._snapshot())

    def close(self) -> None:
        """Put all that is left."""
        if self._thread is not None:
            self._thread.shutdown()
        if any(each.new for each in self._ranks.values()):
            self._end_chunk()
        if self._waiting or self._is_new:
            self._put(self._snapshot())

    def _snapshot(self) -> list[_RankRecords]:
        return [each.snapshot() for each in self._ranks.values()]

    def _end_chunk(self) -> None:
        by_rank = [each.new for each in self._ranks.values()]
        every = _power_of_two(sum(map(len, by_rank)) / self._most_in_a_chunk)
        self._waiting.append([record for each in by_rank for record in (each if every == 1 else thinned(each, every))])
        self._history_s = self._clock()
        for each in self._ranks.values():
            each.new = []

    def _put(self, ranks: list[_RankRecords]) -> None:
        """History first: the newest records say how much of it is there."""
        try:
            while self._waiting:
                place = self._paths.telemetry_chunk(self._attempt, self._node_rank, self._num_chunks)
                files.write_text(place, lines_of(self._waiting[0]))
                self._num_chunks += 1
                self._waiting.popleft()
            shown = [record for each in ranks for record in each.shown()]
            files.write_text(self._paths.latest(self._attempt, self._node_rank), latest_text(self._num_chunks, shown))
            self._pause_s = self._interval_s
        except Exception as error:  # stores raise errors of their own, and the training goes on
            logger.warning("telemetry could not be written: %s", error)
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._is_new = True


def _power_of_two(least: float) -> int:
    """The least power of two that is not less: groups of one size end where those of half the size do."""
    every = 1
    while every < least:
        every *= 2
    return every
