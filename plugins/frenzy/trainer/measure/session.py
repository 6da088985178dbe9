"""A session of measurements: one case after the other, none twice, and over in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

from frenzy.trainer.measure.case import MeasureCase
from frenzy.trainer.measure.record import Measurement, Outcome


class TimeIsUp(Exception):
    """Raised inside a case when the session must end now; the case is not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a session ends. clock_s: seconds, from any origin. end_s: None for no end."""

    clock_s: Callable[[], float]
    end_s: float | None = None

    def has_room_for(self, case_s: float) -> bool:
        """Whether a case of ``case_s`` would still end in time."""
        return self.end_s is None or self.clock_s() + case_s < self.end_s


def is_settled(measurement: Measurement, *, bisect: bool) -> bool:
    """Whether there is nothing left to find out about the measured case."""
    return measurement.outcome is not Outcome.RAN or not bisect or measurement.needed_bytes is not None


def left_over(cases: Iterable[MeasureCase], settled: Set[str]) -> list[MeasureCase]:
    """``cases`` without those whose key is among ``settled``, and none of them twice."""
    by_key = {case.key: case for case in cases}
    return [case for key, case in by_key.items() if key not in settled]


def run_session(
    cases: Iterable[MeasureCase], measure: Callable[[MeasureCase], Measurement], limits: Limits
) -> Iterator[Measurement]:
    """Measure ``cases`` in their order until the time is up: none starts that the longest so far says cannot end."""
    longest_s = 0.0
    for case in cases:
        if not limits.has_room_for(longest_s):
            return
        started_s = limits.clock_s()
        try:
            found = measure(case)
        except TimeIsUp:
            return
        longest_s = max(longest_s, limits.clock_s() - started_s)
        yield found
