"""A published row's run, or why it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from frenzy.evaluation.published import UnknownRow

T = TypeVar("T")


def run_or_refusal(read: Callable[[], T]) -> tuple[T | None, str]:
    """The run that ``read`` finds in a row, or why it cannot be predicted."""
    try:
        return read(), ""
    except UnknownRow as error:
        return None, str(error)
