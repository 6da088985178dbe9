"""Signs of progress where there are no steps: while a node starts, saves or exports.

One small object per node in the telemetry folder, overwritten by whoever works for the node: its launcher, the child
that prepares, then the first of its ranks. Work that goes on for long calls ``beat`` after each piece of it: a process
that hangs must not look alive, so nothing beats by a clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.telemetry import Heartbeat
from frenzy.trainer import env, files

logger = logging.getLogger("frenzy.trainer")
_INTERVAL_S: Final = 5.0
_POLL_S: Final = 0.2
_NOT_BEGUN: Final = "waiting for a node that has not begun"


@dataclass(slots=True)
class _Pulse:
    """Where this process's signs go; forks inherit it."""

    place: str
    phase: str = ""
    written_s: float = 0.0


_pulse: _Pulse | None = None


def begin(place: str | None) -> None:
    """From now on signs of this process, and of its forks, go to ``place``; None: to nowhere."""
    global _pulse
    _pulse = None if place is None else _Pulse(place)


def beat(phase: str, done: int | None = None) -> None:
    """Tell that ``phase`` goes on; done: how far it is, in units of its own. Cheap: told every few seconds only."""
    now = time.monotonic()
    if _pulse is None or (phase == _pulse.phase and now - _pulse.written_s < _INTERVAL_S):
        return
    _pulse.phase, _pulse.written_s = phase, now
    try:
        files.write_text(_pulse.place, codec.dumps(Heartbeat(phase=phase, time_s=time.time(), done=done)))
    except Exception as error:  # a store that is away must not end what goes on
        logger.warning("a sign of progress could not be written: %s", error)


def counting(phase: str) -> Callable[[int], None]:
    """What is told the size of each piece of ``phase``, and beats with their sum."""
    done = 0

    def tell(num: int) -> None:
        nonlocal done
        done += num
        beat(phase, done)

    return tell


def wait_for(place: str, *, signs_at: str, what: str) -> str:
    """The text at ``place``, once another node has put it there; signs_at: where that node's signs are.

    Its signs are passed on, for those who wait for this node. Raises TemporaryError when it showed no progress for as
    long as a start may be silent. Before its first sign it may have no machine or no image yet, which takes any time:
    who watches the attempt knows whether it runs. Nor is a node silent that waits for such a one.
    """
    last, since = None, 0.0
    if _read(place) is None and _read(signs_at) is None:
        beat(_NOT_BEGUN)
    while True:
        found = _read(place)
        if found is not None:
            return found
        sign = _read(signs_at)
        if sign is not None and sign != last:
            last, since = sign, time.monotonic()
            beat("waiting for another node, which shows progress")
        if last is not None and _NOT_BEGUN not in last and time.monotonic() - since > env.startup_s():
            detail = f"Another node did not {what}, and showed no progress for {env.startup_s():.0f} s."
            raise TemporaryError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail), retry_after_s=60)
        time.sleep(_POLL_S)


def _read(place: str) -> str | None:
    try:
        return files.read_text(place)
    except FileNotFoundError:
        return None
    except Exception as error:  # a store that is away must not end what waits
        logger.warning("what another node says could not be read: %s", error)
        return None
