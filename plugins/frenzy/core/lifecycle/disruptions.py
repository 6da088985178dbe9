"""Losses: attempts that the cluster ended, not the job. The run goes on elsewhere from its last checkpoint.

A loss leaves the user's budget of moves alone. Its own bound is progress: a run that gets further
between its losses may have any number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from frenzy.core.runs.ledger import Attempt
from frenzy.core.values.cluster import NodeAllocation
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.failure_classes import NextStep, codes_of

LOSS_REASONS: Final = codes_of(NextStep.OTHER_NODE) | frozenset(
    {
        ReasonCode.POD_EVICTED,
        ReasonCode.POD_PREEMPTED,
        ReasonCode.POD_DELETED,
        ReasonCode.POD_UNSCHEDULABLE,
        ReasonCode.NODE_LOST,
        ReasonCode.IMAGE_PULL_FAILED,
        ReasonCode.INIT_CONTAINER_FAILED,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.API_UNREACHABLE,
        ReasonCode.LEASE_EXPIRED,
    }
)
# The cluster would not take the workers now, wherever they were to run: there is nothing to do but wait.
_NOT_NOW: Final = frozenset({ReasonCode.QUOTA_EXCEEDED, ReasonCode.API_UNREACHABLE})
# Losses in a row, none of which got the run further, before it fails.
_LIMIT: Final = 5
# An image that other nodes cannot pull either is no fault of a node, nor is one without code for a type of GPU, nor an
# init container that fails on them, too. An API server that makes no pods may be away for as long as an upgrade takes:
# each try takes a minute, and so does the pause after it.
_LIMITS: Final[Mapping[ReasonCode, int]] = {
    ReasonCode.IMAGE_PULL_FAILED: 2,
    ReasonCode.INIT_CONTAINER_FAILED: 2,
    ReasonCode.GPU_NOT_SUPPORTED: 2,
    ReasonCode.API_UNREACHABLE: 30,
}
_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 60.0


def is_hopeless(attempts: Sequence[Attempt]) -> bool:
    """Whether the last attempt, a loss, is one too many. Waiting for a quota is never hopeless."""
    row = [(each.outcome.code, each.plan.gpu_type) for each in _losses_in_a_row(attempts) if each.outcome is not None]
    codes = [code for code, _ in row]
    last = attempts[-1].outcome
    if last is None or last.code is ReasonCode.QUOTA_EXCEEDED:
        return False
    of_type = (last.code, attempts[-1].plan.gpu_type)
    tried = row.count(of_type) if last.code is ReasonCode.GPU_NOT_SUPPORTED else codes.count(last.code)
    if tried >= _LIMITS.get(last.code, _LIMIT):
        return True
    return last.code not in _NOT_NOW and sum(code not in _NOT_NOW for code in codes) >= _LIMIT


def lost_nodes(attempts: Iterable[Attempt]) -> tuple[str, ...]:
    """Nodes to blame for the end of an attempt, by name."""
    return tuple(sorted({node for each in attempts for node in each.lost_nodes}))


def with_node_of_rank(
    lost: tuple[str, ...], allocations: Iterable[NodeAllocation], *, code: ReasonCode, failing_rank: int | None
) -> tuple[str, ...]:
    """``lost`` with the node of the rank that failed first, if the end is one that its node is to blame for."""
    if failing_rank is None or code not in codes_of(NextStep.OTHER_NODE):
        return lost
    nodes = [each.node for each in allocations for _ in range(each.num_gpus)]
    node = nodes[failing_rank] if failing_rank < len(nodes) else None
    return lost if node is None or node in lost else (*lost, node)


def not_before_s(attempts: Sequence[Attempt]) -> float:
    """When the run may start again: at once, but for pauses that double while losses follow one another."""
    last, row = attempts[-1], _losses_in_a_row(attempts)
    if not row or last.ended_s is None:
        return 0.0
    is_not_now = last.outcome is not None and last.outcome.code in _NOT_NOW
    num_pauses = len(row) - (0 if is_not_now else 1)
    if num_pauses == 0:
        return 0.0
    return float(last.ended_s + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(16, num_pauses - 1)))


def _losses_in_a_row(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """The last attempts, all of them losses, newest first, as far back as none got the run further."""
    row: list[Attempt] = []
    for each in reversed(attempts):
        if each.outcome is None or each.outcome.code not in LOSS_REASONS:
            break
        row.append(each)
        if (each.checkpoint_step or 0) > (each.next_attempt.checkpoint_step or 0):
            break
    return tuple(row)
