"""One tracker's process: what rank 0 reports becomes points. Whatever fails is told once, and tried again later."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from frenzy.core.runs.access import HIDDEN
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.telemetry import StepRecord, printable
from frenzy.trainer.trackers.tracker import Ending, Tracker, point_of

logger = logging.getLogger("frenzy.trainer")

# The last line that a tracker's process reads.
ENDED: Final = "ended "
_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 120.0
_FILES_S: Final = 60.0
_POLL_S: Final = 0.1
_READ_BYTES: Final = 1024**2
# MLflow's server takes a thousand metrics at once; a step has seven.
_MOST_POINTS: Final = 140
# Of a server that is away; the oldest go first.
_MOST_WAITING: Final = 50_000
_LONGEST_PROBLEM: Final = 500


class Following:
    """Hands ``tracker`` the records that it lacks, and has ``keep`` remember how far that is.

    keep_files: copies the tracker's files to where they are kept. hidden: what stands in no problem that is told.
    """

    def __init__(
        self,
        tracker: Tracker,
        known: TrackedRun,
        keep: Callable[[TrackedRun], None],
        *,
        num_gpus: int,
        keep_files: Callable[[], None] = lambda: None,
        hidden: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracker, self._known, self._keep, self._num_gpus = tracker, known, keep, num_gpus
        self._keep_files, self._hidden, self._clock = keep_files, hidden, clock
        self._waiting: deque[StepRecord] = deque(maxlen=_MOST_WAITING)
        self._is_open = False
        self._pause_s, self._next_s, self._files_s = _PAUSE_S, float("-inf"), clock()

    def add(self, record: StepRecord) -> None:
        self._waiting.append(record)

    def turn(self) -> None:
        """Hand over what waits, if it is time."""
        if self._waiting and self._clock() >= self._next_s:
            self._try_to_hand_over()
            self._next_s = self._clock() + self._pause_s
        if self._is_open and self._clock() - self._files_s >= _FILES_S:
            self._files_s = self._clock()
            self._try(self._keep_files)

    def end(self, ending: Ending) -> None:
        """Hand over all that is left."""
        if self._waiting:
            self._try_to_hand_over()
        if self._is_open:
            self._try(lambda: self._tracker.close(ending))
            self._try(self._keep_files)

    def _hand_over(self) -> None:
        if not self._is_open:
            self._note(self._tracker.open(self._known, first_step=self._waiting[0].step))
            self._is_open = True
        while self._waiting:
            part = list(islice(self._waiting, _MOST_POINTS))
            new = [point_of(each, self._num_gpus) for each in part if each.step > self._known.last_step]
            if new:
                self._tracker.log(new)
            for _ in part:
                self._waiting.popleft()
            self._note(replace(self._known, last_step=max(self._known.last_step, part[-1].step), problem=""))
        self._pause_s = _PAUSE_S

    def _try_to_hand_over(self) -> None:
        if not self._try(self._hand_over):
            # What a server has of the last points, it is asked when the run is opened again.
            self._is_open = False
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _try(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as error:  # libraries raise errors of their own, and the training goes on
            self._tell(_problem_of(self._known.kind, error, self._hidden))
            return False
        return True

    def _tell(self, problem: str) -> None:
        if problem != self._known.problem:
            logger.warning("%s gets no more of this run: %s", self._known.kind, problem)
            self._note(replace(self._known, problem=problem))

    def _note(self, known: TrackedRun) -> None:
        if known == self._known:
            return
        self._known = known
        try:
            self._keep(known)
        except Exception as error:  # of a store that is away
            logger.warning("what %s has of this run could not be noted: %s", known.kind, error)


def _problem_of(kind: str, error: Exception, hidden: Sequence[str]) -> str:
    if isinstance(error, ImportError):
        return f"{error}; it has to be installed where the workers run: pip install 'frenzy-airflow[trackers]'"
    said = printable(str(error))
    for each in hidden:  # a key that cannot be sent is quoted by those who were to send it
        said = said.replace(each, HIDDEN)
    text = " ".join(said.split())[:_LONGEST_PROBLEM]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def follow(reader: int, following: Following) -> None:
    """Read records from the pipe ``reader`` to its last line, or to its end."""
    for number in (signal.SIGTERM, signal.SIGINT):  # whoever asks the attempt to stop does not mean this process
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(reader, False)
    rest = b""
    while True:
        try:
            found = os.read(reader, _READ_BYTES)
        except BlockingIOError:
            following.turn()
            time.sleep(_POLL_S)
            continue
        *lines, rest = (rest + found).split(b"\n")
        for line in lines:
            if line.startswith(ENDED.encode()):
                return following.end(Ending(line.decode().removeprefix(ENDED)))
            _add(following, line)
        following.turn()
        if not found:
            return following.end(Ending.FAILED)


def _add(following: Following, line: bytes) -> None:
    try:
        following.add(codec.loads(StepRecord, line))
    except ContractError as error:
        logger.warning("a record of a step is lost: %s", error)
