"""A kept copy of what an API server lists: one list, then only changes.

    list -> (objects, version) -> watch from version -> changes ... -> the watch ends -> watch from the last version
                                                                    -> 410 Gone      -> list again

The server is asked as rarely as it allows, however large the cluster is. Its silence is no news, and neither is an
object that cannot be read: what was known stays known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

T = TypeVar("T")
Json = dict[str, Any]

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_END_S: Final = 5.0


class GoneError(Exception):
    """The version to watch from is too old: list again."""


class ListFailedError(Exception):
    """The server could not be asked, or refused; the message says how."""


class ForbiddenError(ListFailedError):
    """The service account may not list that."""


class AbsentError(ListFailedError):
    """The server has no such kind of objects."""


class Source(Protocol):
    """One kind of objects of an API server."""

    def list(self) -> tuple[Iterable[Json], str]:
        """All objects, and the version of the list. Raises ListFailedError."""
        ...

    def watch(self, version: str) -> Iterator[Json]:
        """Events after ``version``, for as long as the server likes, once it answers.

        Raises GoneError, ListFailedError, the iterator too.
        """
        ...

    def close(self) -> None:
        """End a watch that another thread waits in, and let no other begin."""
        ...


class Wait(Protocol):
    """How to pause: ``threading.Event`` is one."""

    def wait(self, timeout: float) -> bool: ...
    def is_set(self) -> bool: ...


class Reflection(Generic[T]):
    """Keeps ``keep(object)`` of every object of ``source``, by uid, in a thread from ``keep_going`` to ``close``.

    keep: None for what is not to be kept. relist_s: how long watches are trusted before all is listed again, whatever
    stands between them and the server.
    """

    def __init__(
        self, source: Source, keep: Callable[[Json], T | None], *, name: str, relist_s: float = float("inf")
    ) -> None:
        self._source, self._keep, self.name, self._relist_s = source, keep, name, relist_s
        self._lock = threading.Lock()
        self._kept: dict[str, T] = {}
        self._generation = 0
        self._version: str | None = None  # to watch from; None: to be listed first
        self._unreadable: dict[str, str] = {}
        self.has_listed = threading.Event()
        self.has_answered = threading.Event()  # with a list, or by refusing one
        self.problem: str | None = None  # why the server does not answer; None while it does
        self._noted: str | None = None
        self._has_tried = threading.Event()
        self._heard_s = self._listed_s = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def keep_going(self) -> None:
        """Start the thread unless it runs: for the first time, or because something ended it."""
        with self._lock:
            if not self._stop.is_set() and (self._thread is None or not self._thread.is_alive()):
                name = f"frenzy-{self.name}"
                self._thread = threading.Thread(target=self.run, args=(self._stop,), name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread; one that cannot be reached now ends with its watch, and keeps nothing up."""
        self._stop.set()
        self._source.close()
        if self._thread is not None:
            self._thread.join(_END_S)

    def is_current(self, patience_s: float, *, max_age_s: float) -> bool:
        """Whether the server answers, and did so ``max_age_s`` ago at most. The end of the first list is waited for."""
        self._has_tried.wait(patience_s)
        is_kept_up = self.has_listed.is_set() and self.problem is None and not self._stop.is_set()
        return is_kept_up and time.monotonic() - self._heard_s < max_age_s

    def snapshot(self) -> tuple[int, tuple[T, ...]]:
        """A number that changes with every change, and what is kept."""
        with self._lock:
            return self._generation, tuple(self._kept.values())

    @property
    def is_refused(self) -> bool:
        """Whether the server answered, and has never listed anything."""
        return self.has_answered.is_set() and not self.has_listed.is_set()

    def run(self, stop: Wait) -> None:
        """Follow the source until ``stop`` is set. After a failure it pauses, each time twice as long.

        A watch that tells something ends the growing, and so does a list, unless the one before it led to nothing.
        """
        pause_s, leads_nowhere = _FIRST_PAUSE_S, False
        while not stop.is_set():
            before = self._version
            failure = self._list_or_follow(stop)
            has_told = before is not None and (failure is None or self._version != before)
            leads_nowhere = leads_nowhere and not has_told
            if has_told or (failure is None and not leads_nowhere):
                pause_s = _FIRST_PAUSE_S
            if failure is None:
                self.problem = self._noted = None
                self._has_tried.set()
                ended_early = time.monotonic() - self._heard_s < _FIRST_PAUSE_S
                if self._version == before and ended_early and not stop.is_set():  # by something between, maybe each
                    stop.wait(_FIRST_PAUSE_S)
                continue
            if stop.is_set():  # which ends a watch in mid-line
                return
            is_first = before is not None and not leads_nowhere
            if before is not None and not isinstance(failure, ListFailedError):
                self._version, leads_nowhere = None, True
            if isinstance(failure, GoneError) and is_first:
                continue
            if before != "":  # there was something to watch
                self._note(failure)
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _list_or_follow(self, stop: Wait) -> Exception | None:
        """What went wrong, whatever it was: nobody else would start this thread again."""
        try:
            if self._version is None or time.monotonic() - self._listed_s >= self._relist_s:
                self._relist()
            else:
                self._follow(self._version, stop)
        except Exception as error:
            return error
        return None

    def _relist(self) -> None:
        objects, version = self._source.list()
        read = {each["metadata"]["uid"]: self._read(each) for each in objects}
        kept = {uid: each for uid, each in read.items() if each is not None}
        with self._lock:
            self._kept = kept
            self._generation += 1
        self._version, self._heard_s = version, time.monotonic()
        self._listed_s = self._heard_s
        self.has_listed.set()
        self.has_answered.set()

    def _follow(self, version: str, stop: Wait) -> None:
        """Take over the events of one watch. However it ends, the next one goes on after the last of them."""
        events = self._source.watch(version)
        self.problem, self._heard_s = None, time.monotonic()
        for event in events:
            self._heard_s = time.monotonic()
            self._version = self._take(event)
            if stop.is_set():
                break

    def _take(self, event: Json) -> str:
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            if found.get("code") == 410:
                raise GoneError(found.get("message", ""))
            raise ListFailedError(f"{found.get('code')}: {found.get('message')}")
        if kind != "BOOKMARK":
            self._apply(kind, found)
        return str(found["metadata"]["resourceVersion"])

    def _apply(self, kind: str, found: Json) -> None:
        uid = found["metadata"]["uid"]
        kept = None if kind == "DELETED" else self._read(found)
        with self._lock:
            before = self._kept.pop(uid, None)
            if kept is not None:
                self._kept[uid] = kept
            if kept != before:  # heartbeats change nothing that matters
                self._generation += 1

    def _read(self, found: Json) -> T | None:
        """What is kept of one object; what was kept before, if anything, of one that cannot be read."""
        uid = found["metadata"]["uid"]
        try:
            kept = self._keep(found)
        except Exception as error:  # one odd object is not to hide all others
            problem = f"{type(error).__name__}: {error}"
            if self._unreadable.get(uid) != problem:
                name = found["metadata"].get("name", uid)
                logger.warning("%s of the %s cannot be read and is passed over: %s", name, self.name, problem)
            self._unreadable[uid] = problem
            return self._kept.get(uid)
        self._unreadable.pop(uid, None)
        return kept

    def _note(self, failure: Exception) -> None:
        if isinstance(failure, ForbiddenError):
            self.has_answered.set()
        is_known = isinstance(failure, ListFailedError | GoneError)
        problem = str(failure) if is_known else f"{type(failure).__name__}: {failure}"
        if problem != self._noted:
            logger.warning("The API server cannot be asked for %s: %s", self.name, problem)
        self.problem = self._noted = problem
        self._has_tried.set()
