"""Phrases of the scheduler's sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frenzy.core.capacity.free_capacity import Need
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.units import counted, format_bytes

MAX_NAMED: Final = 3


def about(seconds: float) -> str:
    """A duration as coarse as a forecast deserves: ``"less than a minute"``, ``"about 40 min"``."""
    if seconds < 60:
        return "less than a minute"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    if seconds < 36 * 3600:
        return f"about {seconds / 3600:.1f} h"
    return f"about {round(seconds / 86400)} days"


def listed(items: Sequence[str], *, last: str = "or", noun: str | None = None) -> str:
    """``"a, b or c"``; beyond three the rest is only counted, as so many of ``noun`` or so many more."""
    named = list(dict.fromkeys(items))
    if len(named) > MAX_NAMED:
        rest = len(named) - MAX_NAMED
        named = [*named[:MAX_NAMED], f"{rest} more" if noun is None else counted(rest, noun)]
    if len(named) < 2:
        return "".join(named)
    return f"{', '.join(named[:-1])} {last} {named[-1]}"


def asked(need: Need) -> str:
    """``"4 v100-32"``, with the groups that may not be split."""
    grouped = f" in groups of {need.group_size} on one node" if need.group_size > 1 else ""
    return f"{need.num_gpus} {need.gpu_type}{grouped}"


def any_of(needs: Sequence[Need]) -> str:
    """``"4 v100-32 or 2 a100"``."""
    return listed([asked(need) for need in needs], noun="other plan")


def host_needs(need: Need) -> str:
    """``"6 GiB of host memory, and 1.3 GiB and 1 CPU more for each GPU"``."""
    node = f"{format_bytes(need.host_bytes_per_node)} of host memory" if need.host_bytes_per_node else ""
    each: list[str] = []
    if need.host_bytes_per_gpu:
        each.append(f"{format_bytes(need.host_bytes_per_gpu)}{'' if node else ' of host memory'}")
    if need.millicpus_per_gpu:
        cpus = need.millicpus_per_gpu / 1000
        each.append(f"{cpus:g} CPU{'' if cpus == 1 else 's'}")
    for_each = listed(each, last="and")
    if not node or not each:
        return node or f"{for_each} for each GPU"
    return f"{node}, and {for_each} more for each GPU"


def in_all(cluster: Cluster, gpu_type: str) -> str:
    """``"4 v100"``, with those that our jobs cannot have."""
    total = cluster.num_gpus_by_type.get(gpu_type, 0)
    taken = total - cluster.num_usable_by_type.get(gpu_type, 0)
    return f"{total} {gpu_type}{f' ({taken} held by work outside Frenzy)' if taken else ''}"
