"""What a check found, and what becomes of one that could not be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from frenzy.core.values.errors import FrenzyError


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """remedy: what to do; None where nothing is to be done."""

    check: str
    level: Level
    detail: str
    remedy: str | None = None


def ok(check: str, detail: str) -> Finding:
    return Finding(check=check, level=Level.OK, detail=detail)


def warning(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.WARNING, detail=detail, remedy=remedy)


def problem(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check=check, level=Level.PROBLEM, detail=detail, remedy=remedy)


def checked(check: str, look: Callable[[], Iterator[Finding]], remedy: str) -> Iterator[Finding]:
    """The findings of ``look``; a refusal is a problem, with ``remedy`` where it names none."""
    try:
        yield from look()
    except FrenzyError as error:
        reason = error.reason
        yield problem(check, f"{reason.code}: {reason.sentence}", reason.remedy or remedy)
