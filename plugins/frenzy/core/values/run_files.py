"""What workers and Airflow share: the places of a run directory, and what exit codes say.

Supervisors import this at their start, so that it needs nothing of a job.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from frenzy.core.values.errors import ReasonCode


class ExitCode(IntEnum):
    """What the trainer's exit code says. A failure has the name of its reason."""

    DONE = 0
    DATA_NOT_PREPARED = 82
    NODE_LIMITS_TOO_LOW = 83
    KERNEL_TOO_LARGE = 84
    DISK_FULL = 85
    DEVICE_ASSERT = 86
    ILLEGAL_ACCESS = 87
    GPU_NOT_SUPPORTED = 88
    DRIVER_TOO_OLD = 89
    GPU_UNAVAILABLE = 90
    GPU_FAULT = 91
    COLLECTIVE_FAILED = 92
    COLLECTIVE_TIMEOUT = 93
    SHARED_MEMORY_FULL = 94
    HOST_OUT_OF_MEMORY = 95
    BUDGET_EXCEEDED = 96
    CUDA_OUT_OF_MEMORY = 97
    CHECKPOINTED = 98
    BAD_CONFIG_OR_DATA = 99


GOOD_EXITS: Final = (ExitCode.DONE, ExitCode.CHECKPOINTED)
REASON_BY_EXIT: Final[Mapping[int, ReasonCode]] = {
    int(each): ReasonCode[each.name] for each in ExitCode if each not in GOOD_EXITS
}
EXIT_BY_REASON: Final[Mapping[ReasonCode, int]] = {code: n for n, code in REASON_BY_EXIT.items()}


def how_ended(exit_code: int) -> str:
    """``was killed by SIGKILL`` for 128 + the signal's number, else ``ended with 3``."""
    if exit_code <= 128:
        return f"ended with {exit_code}"
    try:
        return f"was killed by {signal.Signals(exit_code - 128).name}"
    except ValueError:
        return f"was killed by signal {exit_code - 128}"


def scratch_prefix(run_key: str, attempt: int) -> str:
    """How a node launcher's folder for temporary files begins: of one that was killed, another removes it."""
    return f"frenzy-trainer-{run_key}-{attempt}-"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The places of a run directory, as strings joined with ``/`` (fsspec paths)."""

    run_dir: str

    def attempt_dir(self, attempt: int) -> str:
        return f"{self.run_dir}/attempt-{attempt}"

    def spec(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/spec.json"

    def ds_config(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/ds_config.json"

    def control(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/control.json"

    def result(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/result.json"

    def rendezvous(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/rendezvous.json"

    def ready(self, attempt: int, node_rank: int) -> str:
        """What a node puts once it has only to meet the others."""
        return f"{self.attempt_dir(attempt)}/ready-{node_rank:05d}"

    def telemetry_dir(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/telemetry"

    def telemetry_chunk(self, attempt: int, node_rank: int, chunk: int) -> str:
        """A part of the history of a node's ranks."""
        return f"{self.telemetry_dir(attempt)}/{node_rank:05d}-{chunk:06d}.jsonl"

    def latest_dir(self, attempt: int) -> str:
        return f"{self.telemetry_dir(attempt)}/latest"

    def latest(self, attempt: int, node_rank: int) -> str:
        """The newest records of a node's ranks; overwritten."""
        return f"{self.latest_dir(attempt)}/{node_rank:05d}.jsonl"

    def heartbeat(self, attempt: int, node_rank: int) -> str:
        return f"{self.telemetry_dir(attempt)}/node-{node_rank:05d}.json"

    def logs_dir(self, attempt: int) -> str:
        return f"{self.attempt_dir(attempt)}/logs"

    def rank_log(self, attempt: int, rank: int) -> str:
        return f"{self.logs_dir(attempt)}/rank-{rank}.log"

    @property
    def checkpoints_dir(self) -> str:
        return f"{self.run_dir}/checkpoints"

    def checkpoint_manifest(self, step: int) -> str:
        """The file whose presence makes the checkpoint of ``step`` exist."""
        return f"{self.checkpoints_dir}/step-{step}/manifest.json"

    @property
    def model_dir(self) -> str:
        """The finished model: safetensors, config, tokenizer."""
        return f"{self.run_dir}/model"

    @property
    def tracking_dir(self) -> str:
        """What trackers write here: a folder each, and what is known of each beside it."""
        return f"{self.run_dir}/tracking"

    def tracked(self, kind: str) -> str:
        """What is known of one tracker's run; overwritten."""
        return f"{self.tracking_dir}/{kind}.json"

    @property
    def data_dir(self) -> str:
        """The prepared tokens."""
        return f"{self.run_dir}/data"

    @property
    def tokenizer_dir(self) -> str:
        return f"{self.run_dir}/tokenizer"
