"""The least memory a case runs in, found by running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_FIRST_STEP_SHARE: Final = 1 / 64


def smallest_budget(
    runs: Callable[[int], bool], *, start_bytes: int, most_bytes: int, tolerance_bytes: int
) -> int | None:
    """The least budget in which ``runs`` is true, at most ``tolerance_bytes`` too high; None when none up to the most.

    From ``start_bytes`` the steps double, up or down, until the answer changes; then they are halved.
    ``runs`` is taken to be monotone: what runs in a budget runs in every larger one.
    """
    step = max(tolerance_bytes, round(start_bytes * _FIRST_STEP_SHARE))
    budget = min(start_bytes, most_bytes)
    if runs(budget):
        low, high = _downwards(runs, budget, step)
    else:
        found = _upwards(runs, budget, step, most_bytes)
        if found is None:
            return None
        low, high = found
    while high - low > tolerance_bytes:
        middle = (low + high) // 2
        low, high = (low, middle) if runs(middle) else (middle, high)
    return high


def _downwards(runs: Callable[[int], bool], high: int, step: int) -> tuple[int, int]:
    while True:
        low = high - step
        if low <= 0 or not runs(low):
            return max(0, low), high
        high, step = low, 2 * step


def _upwards(runs: Callable[[int], bool], low: int, step: int, most: int) -> tuple[int, int] | None:
    while low < most:
        high = min(most, low + step)
        if runs(high):
            return low, high
        low, step = high, 2 * step
    return None
