"""What a node has of an attempt: its ranks, the folder of its logs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import files

logger = logging.getLogger("frenzy.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRanks:
    """The ranks of this machine: ``count`` of them from ``first`` on."""

    first: int
    count: int
    node_rank: int
    is_only_machine: bool

    @property
    def is_first_node(self) -> bool:
        return self.node_rank == 0


def local_ranks(gpus_per_node: Sequence[int], node_rank: int | None) -> LocalRanks:
    """Which ranks run here; ``node_rank`` None means all of them."""
    if node_rank is None:
        return LocalRanks(first=0, count=sum(gpus_per_node), node_rank=0, is_only_machine=True)
    return LocalRanks(
        first=sum(gpus_per_node[:node_rank]),
        count=gpus_per_node[node_rank],
        node_rank=node_rank,
        is_only_machine=len(gpus_per_node) == 1,
    )


def log_file(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.log"


def logs_folder(spec: LaunchSpec, scratch: Path) -> Path:
    """Where this node's logs are written: the attempt's own folder, if it is local."""
    local = files.local_path(RunPaths(spec.run_dir).logs_dir(spec.attempt))
    folder = local if local is not None else scratch / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def upload_logs(spec: LaunchSpec, logs: Path) -> None:
    """Put the logs of ``logs`` into the attempt's folder, as far as its store takes them: the attempt has ended."""
    for each in logs.iterdir():
        try:
            files.upload_file(each, f"{RunPaths(spec.run_dir).logs_dir(spec.attempt)}/{each.name}")
        except OSError as error:
            logger.warning("%s stays on its node: %s", each.name, error)
