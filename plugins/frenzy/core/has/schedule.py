"""The scheduling function: passes over the queue until one changes nothing, then the holds."""

from __future__ import annotations

from frenzy.core.has import backfill, paper
from frenzy.core.has.board import Board
from frenzy.core.has.holds import holds
from frenzy.core.has.policy import HasPolicy, Policy
from frenzy.core.has.state import SchedulingState
from frenzy.core.queue import Action, SchedulingFacts, Start


def schedule(facts: SchedulingFacts | SchedulingState, now_s: float, policy: Policy) -> tuple[Action, ...]:
    """What to do now: a Start for each job that can, a Hold with its reason for every other.

    Starts come in the order they were decided, then holds in queue order. Pure: the same
    arguments give the same actions. A ``SchedulingState`` must have been made under ``policy``.
    """
    state = facts if isinstance(facts, SchedulingState) else SchedulingState.of(facts, policy)
    starts: list[Action] = []
    while True:
        board = run_pass(state, now_s, policy)
        if not board.started:
            return (*starts, *holds(board, policy))
        starts += [Start(run_key=job.run_key, plan=job.plan, placement=job.placement) for job in board.started]
        state = state.start(board.started)


def run_pass(state: SchedulingState, now_s: float, policy: Policy) -> Board:
    """One pass of ``policy`` over the queue."""
    board = Board(state=state, now_s=now_s, room=state.room)
    if isinstance(policy, HasPolicy):
        backfill.run_pass(board, policy)
    else:
        paper.run_pass(board, policy)
    return board
