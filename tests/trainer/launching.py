"""Tiny jobs, and launches of the real trainer that share one import of its libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.core.values import codec
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import StepRecord
from frenzy.core.values.units import MIB
from frenzy.ports import telemetry_records
from frenzy.trainer import env, files

REPOSITORY = Path(__file__).parents[2]
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "vocab_size": 260,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "max_position_embeddings": 64,
}
SENTENCES = (
    "My hands are of your colour, but I shame to wear a heart so white.",
    "The quality of mercy is not strained; it droppeth as the gentle rain.",
    "Some rise by sin, and some by virtue fall.",
    "We are such stuff as dreams are made on, and our little life is rounded with a sleep.",
)


def write_text(folder: Path, num_lines: int = 400) -> Path:
    """A text of ``num_lines`` lines that a model can learn something from."""
    file = folder / "text.txt"
    file.write_text("\n".join(f"{number} {SENTENCES[number % len(SENTENCES)]}" for number in range(num_lines)))
    return file


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attempt: what differs between tests. Sections of the job are given as plain mappings."""

    run_dir: str
    data: str
    attempt: int = 1
    model: Mapping[str, Any] = field(default_factory=lambda: GPT2)
    model_section: Mapping[str, Any] | None = None
    data_section: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    num_steps: int = 4
    num_gpus: int = 1
    tp: int = 1
    zero_stage: int = 2
    global_batch_size: int = 8
    micro_batch_size: int = 4
    activation_checkpointing: bool = False
    offload_optimizer: bool = False
    memory_bytes: int = 512 * MIB
    flops_per_s: float = 1e15
    gpus_per_node: tuple[int, ...] | None = None

    def spec(self) -> LaunchSpec:
        """The launch spec of the case."""
        dp = self.num_gpus // self.tp
        training = {
            "global_batch_size": self.global_batch_size,
            "max_steps": self.num_steps,
            "learning_rate": 2e-3,
            "precision": "fp32",
            "seed": 11,
            **self.training,
        }
        job = {
            "name": "tiny",
            "model": self.model_section or {"config": self.model},
            "data": {"path": self.data, "sequence_length": 32, **self.data_section},
            "training": training,
            **self.job,
        }
        plan = ResourcePlan(
            gpu_type="small",
            num_gpus=self.num_gpus,
            dp=dp,
            tp=self.tp,
            zero_stage=self.zero_stage,
            micro_batch_size=self.micro_batch_size,
            accumulation_steps=self.global_batch_size // (dp * self.micro_batch_size),
            activation_checkpointing=self.activation_checkpointing,
            offload_optimizer=self.offload_optimizer,
            bucket_elements=2**15,
            memory=MemoryPrediction(peak_allocated_bytes=1, required_bytes=1, host_bytes=1, at="backward"),
            gpu_memory_bytes=self.memory_bytes,
            step_time_s=1.0,
            samples_per_s=1.0,
            predicted_run_s=1.0,
            predicted_cost=0.0,
        )
        nodes = self.gpus_per_node or (self.num_gpus,)
        return LaunchSpec(
            run_key="run",
            attempt=self.attempt,
            job=codec.decode(TrainingJob, job),
            plan=plan,
            gpu=GpuType(
                name="small", memory_bytes=self.memory_bytes, flops_per_s=self.flops_per_s, kind=DeviceKind.VIRTUAL
            ),
            placement=Placement(
                allocations=tuple(NodeAllocation(node=f"node{i}", num_gpus=count) for i, count in enumerate(nodes))
            ),
            run_dir=self.run_dir,
        )


class Launch:
    """One attempt in progress."""

    def __init__(self, server: LaunchServer, pid: int, case: Case) -> None:
        self._server, self.pid, self.case = server, pid, case

    def wait(self) -> AttemptResult:
        """Block until the launcher ended; its result, which agrees with its exit code."""
        code = self._server.ask(f"wait {self.pid}")
        result = codec.loads(AttemptResult, files.read_text(RunPaths(self.case.run_dir).result(self.case.attempt)))
        assert result.exit_code == code, (result, code)
        return result

    def exit_code(self) -> int:
        return self._server.ask(f"wait {self.pid}")

    def wait_for_step(self, step: int, *, timeout_s: float = 120.0) -> None:
        """Block until rank 0 has reported ``step``."""
        until(lambda: any(each.step >= step for each in records(self.case)), timeout_s=timeout_s)

    def rank_pids(self) -> list[int]:
        """Pids of the ranks, in rank order (they are forked in that order)."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sorted(int(each) for each in children)


class LaunchServer:
    """The fork server's other side."""

    def __init__(self, *arguments: str, extra_path: str = "") -> None:
        path = os.pathsep.join(each for each in (str(REPOSITORY / "plugins"), extra_path) if each)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **env.settled(virtual=True)},
        )

    def ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, case: Case, *arguments: str) -> Launch:
        """Write the spec and start the launcher of ``case``."""
        spec = case.spec()
        files.write_text(RunPaths(case.run_dir).spec(case.attempt), codec.dumps(spec))
        if spec.job.workload is not None:
            self.ask(f"measure {spec.job.workload.framework}")
        given = ["--run-dir", case.run_dir, "--attempt", str(case.attempt), *arguments]
        return Launch(self, self.ask(f"start {json.dumps(given)}"), case)

    def run(self, case: Case) -> AttemptResult:
        """Start ``case`` and wait for its end."""
        return self.start(case).wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def records(case: Case, rank: int = 0) -> list[StepRecord]:
    """All records one rank has written, by step."""
    root, _, key = case.run_dir.rpartition("/")
    found = telemetry_records(FsspecRunStore(root), key, case.attempt)
    return [each for each in found if each.rank == rank]


def losses(case: Case) -> list[float]:
    return [each.loss for each in records(case)]


def forget_checkpoint(case: Case, *steps: int) -> None:
    """As if ``case`` had been lost before it saved ``steps``: the next attempt goes on from the checkpoint before."""
    for step in steps:
        Path(RunPaths(case.run_dir).checkpoint_manifest(step)).unlink()


def until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Block until ``condition`` holds; fails after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
