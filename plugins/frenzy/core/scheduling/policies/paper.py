"""The policy ``frenzy-paper``: the published algorithm (arXiv 2412.14479).

FIFO; a job that does not fit is passed over. Phase 1 takes the first plan, by GPUs and then
memory, for which enough idle GPUs of its class or larger exist. Phase 2 fills that class (best
fit, else the most idle node whole, again), then the next larger class. A class is a memory size.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from frenzy.core.scheduling.engine.board import Board
from frenzy.core.scheduling.engine.options import Contender, Option
from frenzy.core.scheduling.engine.placement import usable_gpus
from frenzy.core.scheduling.engine.policy_settings import PaperPolicy
from frenzy.core.scheduling.engine.queue_index import Turns
from frenzy.core.scheduling.engine.room import Need
from frenzy.core.values.cluster import NodeAllocation, Placement


def run_pass(board: Board, policy: PaperPolicy) -> None:
    """Start, in order of submission, every job one of whose plans fits."""
    if not any(room.idle_gpus for room in board.room.by_type.values()):
        return
    turns = Turns(board.state.waiting)
    for contender in turns:
        if contender.job.run_key not in board.state.running and not _started(board, contender, policy):
            turns.close()


def _started(board: Board, contender: Contender, policy: PaperPolicy) -> bool:
    """Start ``contender`` with the first of its plans that fits, if any does."""
    if not _may_fit(board, contender, policy):
        return False
    for option in contender.options:
        placement = place_by_class(board, memory_classes(board, option, policy), option.need)
        if placement is not None:
            board.start(contender, option, placement)
            return True
    return False


def _may_fit(board: Board, contender: Contender, policy: PaperPolicy) -> bool:
    """Whether enough GPUs are idle for any option, wherever they are."""
    if policy.launchable_only:
        return contender.may_fit(board.room)
    fewest = dict(contender.fewest_gpus)
    num_idle = 0
    for gpu_types in reversed(board.state.cluster.memory_classes[1]):
        num_idle += sum([board.room.by_type[gpu_type].idle_gpus for gpu_type in gpu_types])
        if fewest.get(gpu_types[0], math.inf) <= num_idle:
            return True
    return False


def place_by_class(board: Board, classes: Sequence[Sequence[str]], need: Need) -> Placement | None:
    """Phase 2 over ``classes`` of GPU types, smallest first; None when too few GPUs are idle."""
    if not _enough_idle(board, classes, need.num_gpus):
        return None
    taken: list[NodeAllocation] = []
    missing = need.num_gpus
    for gpu_types in classes:
        for node, num_gpus in _fill(board, gpu_types, need, missing):
            taken.append(NodeAllocation(node=node, num_gpus=num_gpus))
            missing -= num_gpus
        if missing == 0:
            return Placement(allocations=tuple(taken))
    return None


def _enough_idle(board: Board, classes: Sequence[Sequence[str]], num_gpus: int) -> bool:
    """Whether so many GPUs of ``classes`` are idle, on whatever nodes."""
    by_type = board.room.by_type
    for gpu_types in reversed(classes):
        for gpu_type in gpu_types:
            num_gpus -= by_type[gpu_type].idle_gpus
        if num_gpus <= 0:
            return True
    return False


def memory_classes(board: Board, option: Option, policy: PaperPolicy) -> Sequence[Sequence[str]]:
    """GPU types that may take ``option``, in classes of memory size, ascending."""
    if policy.launchable_only:
        return [[option.need.gpu_type]]
    sizes, classes = board.state.cluster.memory_classes
    return classes[bisect_left(sizes, option.plan.memory.required_bytes) :]


def _fill(board: Board, gpu_types: Sequence[str], need: Need, missing: int) -> Iterator[tuple[str, int]]:
    """Nodes of one class with the GPUs taken on each, until nothing is missing or left."""
    tightest = _tightest(board, gpu_types, need, missing)
    if tightest is not None:
        yield tightest, missing
        return
    nodes = _by_idle_then_speed(board, gpu_types, need)
    while missing and nodes:
        covering = next((node for node in nodes if node[0] >= missing), None)
        chosen = covering or max(nodes, key=lambda node: (node[0], -node[1]))
        nodes.remove(chosen)
        num_gpus = min(chosen[0], missing)
        missing -= num_gpus
        yield chosen[2], num_gpus


def _tightest(board: Board, gpu_types: Sequence[str], need: Need, missing: int) -> str | None:
    """The node that covers ``missing`` with the fewest idle GPUs, found without a look at all nodes.

    None as well where idle GPUs are not all that counts: then every node has to be looked at.
    """
    if not board.state.rules.counts_gpus_only or need.excluded_nodes:
        return None
    types = board.state.cluster.types_by_name
    rooms = [(-types[gpu_type].flops_per_s, board.room.by_type[gpu_type]) for gpu_type in gpu_types]
    for idle in range(missing, max(len(room.by_idle) for _, room in rooms)):
        first = [
            (speed, room.by_idle[idle][0]) for speed, room in rooms if idle < len(room.by_idle) and room.by_idle[idle]
        ]
        if first:
            return min(first)[1]
    return None


def _by_idle_then_speed(board: Board, gpu_types: Sequence[str], need: Need) -> list[tuple[int, float, str]]:
    """(idle GPUs, negated speed, node), ascending: idle first, faster first, then the name."""
    types = board.state.cluster.types_by_name
    return sorted(
        (num_gpus, -types[gpu_type].flops_per_s, node)
        for gpu_type in gpu_types
        for node, num_gpus in usable_gpus(board.room.by_type[gpu_type], need).items()
    )
