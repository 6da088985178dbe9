"""Robust trend of a short series: the Theil-Sen line and how far to believe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

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


def theil_sen(steps: NDArray[np.float64], values: NDArray[np.float64]) -> Trend:
    """The Theil-Sen estimate (Sen 1968): the median of all pairwise slopes.

    Shapes: both (n,), n >= 2, ``steps`` ascending. Up to 29 % of the points may be outliers.
    """
    rows, columns = np.triu_indices(len(steps), k=1)
    slopes = (values[columns] - values[rows]) / (steps[columns] - steps[rows])
    slope = float(np.median(slopes))
    intercept = float(np.median(values - slope * steps))
    residuals = values - (slope * steps + intercept)
    return Trend(
        level=slope * float(steps[-1]) + intercept,
        slope=slope,
        noise=float(np.median(np.abs(residuals))),
        span=float(steps[-1] - steps[0]),
    )
