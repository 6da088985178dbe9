"""What the processes of a script's ranks do: processor time, and bytes that they read and write (Linux)."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
# In /proc/<pid>/stat behind the name of the command.
_GROUP, _USER, _SYSTEM = 2, 11, 12


class RankWork:
    """Of all processes of some process groups. A command may be a shell's, and what works a child of it."""

    def __init__(self, groups: Collection[int]) -> None:
        self._groups = frozenset(groups)
        self._before: dict[int, tuple[int, int]] = {}

    def grown(self) -> tuple[float, int]:
        """(seconds of processor time, bytes) since the call before."""
        now = {
            int(each): found
            for each in os.listdir("/proc")  # noqa: PTH208  # names alone
            if each.isdecimal() and (found := self._counts(Path("/proc", each))) is not None
        }
        changes = [
            [new - old for new, old in zip(found, self._before.get(pid, (0, 0)), strict=True)]
            for pid, found in now.items()
        ]
        self._before = now
        ticks, num_bytes = (sum(max(0, each[index]) for each in changes) for index in (0, 1))
        return ticks / _CLOCK_TICKS, num_bytes

    def _counts(self, process: Path) -> tuple[int, int] | None:
        """(ticks, bytes) so far; None of another group's process, or one that is gone."""
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[_GROUP]) not in self._groups:
                return None
            ticks = int(fields[_USER]) + int(fields[_SYSTEM])
        except (OSError, IndexError, ValueError):
            return None
        try:
            lines = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
            return ticks, int(lines["rchar"]) + int(lines["wchar"])
        except (OSError, KeyError, ValueError):  # the kernel does not count, or does not tell
            return ticks, 0
