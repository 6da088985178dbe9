"""Waiting for what other processes do: looks again and again until it is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], *, within_s: float = 60.0) -> T:
    """The first true value of ``look``; fails when none comes ``within_s``."""
    deadline_s = time.monotonic() + within_s
    while True:
        value = look()
        if value:
            return value
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)
