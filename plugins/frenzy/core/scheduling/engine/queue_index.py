"""The waiting jobs in queue order, as an immutable index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from frenzy.core.scheduling.engine.entries import Entry


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """All waiting jobs in queue order, which is total: by priority, where that counts, submission, then run key."""

    in_order: tuple[Entry, ...]
    by_priority: bool

    @staticmethod
    def of(entries: Iterable[Entry], *, by_priority: bool) -> Waiting:
        # Sorts are stable, and need no tuples, which the collector would look through.
        in_order = sorted(entries, key=attrgetter("run_key"))
        in_order.sort(key=attrgetter("job.submitted_s"))
        if by_priority:
            in_order.sort(key=attrgetter("job.priority"), reverse=True)
        return Waiting(tuple(in_order), by_priority)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.in_order)

    def __len__(self) -> int:
        return len(self.in_order)

    def only(self, run_keys: Collection[str]) -> Waiting:
        """The jobs of ``run_keys``."""
        return Waiting(tuple([each for each in self.in_order if each.run_key in run_keys]), self.by_priority)

    def put(self, entry: Entry) -> Waiting:
        """With ``entry`` at its place."""
        return Waiting.of((*self.in_order, entry), by_priority=self.by_priority)

    def without(self, run_keys: Collection[str]) -> Waiting:
        """Without the jobs of ``run_keys``, those that wait."""
        return Waiting(tuple([each for each in self.in_order if each.run_key not in run_keys]), self.by_priority)
