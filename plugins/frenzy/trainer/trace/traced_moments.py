"""From the log of a trace to its peak: by point in time and by what the memory was for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from frenzy.core.values.resource_plan import MemoryTerm
from frenzy.trainer.trace.storages import StorageLog

HOST: Final = "host"
_TEMPORARY: Final = "temporaries"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMoment:
    """The highest point within one part of a step, and its parts, largest first."""

    name: str
    peak_bytes: int
    by_category: tuple[MemoryTerm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceResult:
    """Memory of a step on one card, in bytes of tensors.

    peak_bytes: the highest point of two steps. at: the moment it lies in. by_category: its parts.
    resident_bytes: held between two steps. kept_bytes: activations when the loss is there; inputs are
    among them. num_operations: of both steps, as a sign of life.
    """

    peak_bytes: int
    resident_bytes: int
    kept_bytes: int
    at: str
    by_moment: tuple[TracedMoment, ...]
    num_operations: int

    @property
    def by_category(self) -> tuple[MemoryTerm, ...]:
        """The parts of the peak, largest first; they add up to it."""
        return self.moment(self.at).by_category

    def moment(self, name: str) -> TracedMoment:
        """The moment of this name. Raises KeyError."""
        for each in self.by_moment:
            if each.name == name:
                return each
        raise KeyError(name)


def read_log(log: StorageLog, marks: Sequence[tuple[str, int]], *, kept_bytes: int) -> TraceResult:
    """The moments of ``log``; ``marks``: the event at which each begins, in order. Repeated steps are joined."""
    found: dict[str, TracedMoment] = {}
    held: Counter[str] = Counter()
    for name, events in _parts(log, marks):
        peak = _play(log, events, held)
        if name not in found or sum(peak.values()) > found[name].peak_bytes:
            found[name] = _moment(name, peak)
    highest = max(found.values(), key=lambda each: each.peak_bytes)
    return TraceResult(
        peak_bytes=highest.peak_bytes,
        resident_bytes=_total(held),
        at=highest.name,
        kept_bytes=kept_bytes,
        by_moment=tuple(found.values()),
        num_operations=len(log.operation_ends),
    )


def _parts(log: StorageLog, marks: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[int]]]:
    ends = [position for _, position in marks[1:]] + [len(log.events)]
    first = marks[0][1]
    yield "start", log.events[:first]
    for (name, start), end in zip(marks, ends, strict=True):
        yield name, log.events[start:end]


def _play(log: StorageLog, events: Sequence[int], held: Counter[str]) -> Counter[str]:
    """Apply ``events`` to ``held`` (bytes by purpose); the highest state on the way."""
    highest, highest_total = held.copy(), _total(held)
    total = highest_total
    for event in events:
        allocation = log.allocations[event if event >= 0 else ~event]
        purpose = allocation.purpose or _TEMPORARY
        if purpose == HOST:
            continue
        change = allocation.num_bytes if event >= 0 else -allocation.num_bytes
        held[purpose] += change
        total += change
        if total > highest_total:
            highest, highest_total = held.copy(), total
    return highest


def _total(held: Counter[str]) -> int:
    return sum(held.values())


def _moment(name: str, held: Counter[str]) -> TracedMoment:
    terms = (MemoryTerm(name=purpose, num_bytes=size) for purpose, size in held.most_common() if size)
    return TracedMoment(name=name, peak_bytes=_total(held), by_category=tuple(terms))
