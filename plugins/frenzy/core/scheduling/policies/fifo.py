"""The policy ``fifo``: what a queue without plans does ("opportunistic" scheduling).

Priority, then order of submission. The number of GPUs is what the user asked for (``rigid``); the
job takes the fastest GPU type on which that many are idle right now and never waits for a better
one. The first job that cannot start blocks all behind it, unless ``FifoPolicy.head_blocks`` is off.
"""

from __future__ import annotations

from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.policy_settings import FifoPolicy


def run_pass(board: Board, policy: FifoPolicy) -> None:
    """Start jobs from the front of the queue, up to the first that has to wait.

    A job that could not start even if nothing ran blocks nobody.
    """
    for contender in board.state.waiting:
        if contender.job.run_key in board.state.running or board.start_first_that_fits(contender):
            continue
        if policy.head_blocks and any(board.fits_empty(option.need) for option in contender.options):
            board.head_of_line = contender.job
            return
