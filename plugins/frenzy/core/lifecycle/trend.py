"""Robust trend of a short series: the Theil-Sen line and how far to believe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

_BELIEVED_SPANS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A line through (steps, values): ``level`` at the last step, ``slope`` per step.

    noise: median absolute deviation from the line. span: steps between the first point and the last.
    """

    level: float
    slope: float
    noise: float
    span: float

    @property
    def rise(self) -> float:
        """What the line gained over the window."""
        return self.slope * self.span

    def significant(self, least_rise: float) -> bool:
        """Whether the rise stands out of the noise and is at least ``least_rise``."""
        return self.slope > 0 and self.rise > max(least_rise, 3.0 * self.noise)

    def steps_until(self, value: float) -> float:
        """Steps until the line reaches ``value``; infinite when it does not rise, or not that soon.

        A line is believed for twice its own span: one jump within a short window looks like a steep line.
        """
        if self.slope <= 0:
            return float("inf")
        steps = max(0.0, (value - self.level) / self.slope)
        return steps if steps <= _BELIEVED_SPANS * self.span else float("inf")


def theil_sen(points: Sequence[tuple[int, int]]) -> Trend:
    """The Theil-Sen estimate (Sen 1968): the median of all pairwise slopes.

    points: two or more, by ascending step. Up to 29 % of them may be outliers.
    """
    slope = median((b - a) / (end - start) for (start, a), (end, b) in combinations(points, 2))
    intercept = median(value - slope * step for step, value in points)
    first, last = points[0][0], points[-1][0]
    return Trend(
        level=slope * last + intercept,
        slope=slope,
        noise=median(abs(value - (slope * step + intercept)) for step, value in points),
        span=float(last - first),
    )
