"""Groups of parameters that DeepSpeed can lay flat on a card, one after the other.

For stages 1 and 2 it copies each group into one tensor. Where the card lacks the room it takes the way over the host,
where every rank of a node then holds its whole model twice, or runs out of memory. In small groups the copy is never
large, for a group's own tensors go when it is flat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch

from frenzy.core.values.units import GIB

Groups = list[torch.nn.Parameter] | list[dict[str, Any]]

# Of a group's tensors together, where there has to be more than one.
_GROUP_BYTES: Final = GIB
# Beside the copy: CUDA's segments that are not full, NCCL's first buffers.
_BESIDE_BYTES: Final = GIB


def groups_for_card(groups: Groups, *, free_bytes: int, group_bytes: int = _GROUP_BYTES) -> Groups:
    """``groups``, cut where a card with so much free memory could not hold the copy of the largest; the order stays."""
    whole: list[dict[str, Any]] = [each if isinstance(each, dict) else {} for each in groups]
    if not all(whole):
        whole = [{"params": groups}]
    if max((_num_bytes(each["params"]) for each in whole), default=0) + _BESIDE_BYTES <= free_bytes:
        return groups
    return [{**group, "params": part} for group in whole for part in _parts(group["params"], group_bytes)]


def least_free_bytes() -> int:
    """Free memory of the card that has least of it: ranks that cut their groups otherwise than others would wait for
    them for ever.
    """
    torch.cuda.empty_cache()
    return least_of_all(torch.cuda.mem_get_info()[0], torch.device("cuda", torch.cuda.current_device()))


def least_of_all(number: int, device: torch.device) -> int:
    """The least ``number`` of all ranks; collective where there are several."""
    if not torch.distributed.is_initialized():
        return number
    least = torch.tensor(number, dtype=torch.int64, device=device)
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN)
    return int(least)


def _parts(parameters: Iterable[torch.nn.Parameter], most_bytes: int) -> Iterator[Sequence[torch.nn.Parameter]]:
    """Runs of ``parameters`` of at most ``most_bytes`` each, or of one alone."""
    part: list[torch.nn.Parameter] = []
    for each in parameters:
        if part and _num_bytes((*part, each)) > most_bytes:
            yield part
            part = []
        part.append(each)
    yield part


def _num_bytes(parameters: Iterable[torch.nn.Parameter]) -> int:
    return sum(each.nbytes for each in parameters)
