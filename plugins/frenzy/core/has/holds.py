"""Why each waiting job waits: one reason, in a sentence, with the smallest remedy."""

from __future__ import annotations

from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.has.board import Board
from frenzy.core.has.policy import Policy
from frenzy.core.queue import Hold


def holds(board: Board, policy: Policy) -> list[Hold]:
    """One hold for each waiting job, in queue order."""
    return [
        Hold(run_key=job.run_key, reason=Reason(code=ReasonCode.WAITING_FOR_GPUS), position=at)
        for at, job in enumerate(board.state.waiting, start=1)
    ]
