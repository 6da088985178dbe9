"""What a running attempt is asked: by ``control.json``, and by a signal to stop."""

from __future__ import annotations

import logging
import signal
import time
from typing import Final

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, Reason
from frenzy.core.values.launch import Control, ControlAction
from frenzy.trainer import files

logger = logging.getLogger("frenzy.trainer")
_REMOTE_CONTROL_INTERVAL_S: Final = 2.0


class ControlFile:
    """Polls ``control.json``; on a remote store not at every step."""

    def __init__(self, place: str) -> None:
        self._place, self._asked_s = place, 0.0
        self._interval_s = 0.0 if files.local_path(place) is not None else _REMOTE_CONTROL_INTERVAL_S

    def asks_to_stop(self) -> bool:
        now = time.monotonic()
        if now - self._asked_s < self._interval_s:
            return False
        self._asked_s = now
        return self.stop_reason() is not None

    def stop_reason(self) -> Reason | None:
        """Why the attempt is asked to stop, as far as it is."""
        try:
            control = codec.loads(Control, files.read_text(self._place))
        except FileNotFoundError:
            return None
        except (ContractError, OSError, ValueError) as error:  # a store that is away may tell at the next poll
            logger.warning("control.json is ignored: %s", error)
            return None
        return control.reason if control.action is ControlAction.CHECKPOINT_AND_STOP else None


class StopRequest:
    """Remembers SIGTERM and SIGINT to this process."""

    def __init__(self) -> None:
        self._is_received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def received(self) -> bool:
        return self._is_received

    def _note(self, *_: object) -> None:
        self._is_received = True
