"""Values that the contract tests share: a small cluster, and a run with all that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping

from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest, FileEntry
from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.runs.ledger import (
    Attempt,
    CalibrationSample,
    JobState,
    Lease,
    LeaseState,
    MoveTarget,
    NextAttempt,
    QueueEntry,
    RunIdentity,
    RunRecord,
)
from frenzy.core.values import codec
from frenzy.core.values.cluster import Cluster, Node, NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import MemoryPrediction, MemoryTerm, ResourcePlan
from frenzy.core.values.telemetry import StepRecord
from frenzy.core.values.units import GIB, MIB

ENDED = Reason(code=ReasonCode.COMPLETED, detail="Done.")
SMALL = GpuType(name="small", memory_bytes=512 * MIB, flops_per_s=1e10, kind=DeviceKind.VIRTUAL)
LARGE = GpuType(name="large", memory_bytes=2 * GIB, flops_per_s=2e10, kind=DeviceKind.VIRTUAL)


def node(name: str, gpu_type: str = "small", num_gpus: int = 2) -> Node:
    return Node(
        name=name,
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        host_memory_bytes=8 * GIB,
        num_cpus=4,
        labels={"zone": "b", "rack": "7"},
    )


def cluster(*nodes: Node) -> Cluster:
    return Cluster(gpu_types=(SMALL, LARGE), nodes=nodes or (node("n1"), node("n2"), node("n3", "large", 1)))


def identity(run_id: str = "manual__1", *, task_group: str = "train", map_index: int = -1) -> RunIdentity:
    return RunIdentity(dag_id="job_example", run_id=run_id, task_group=task_group, map_index=map_index)


def job(name: str = "example") -> TrainingJob:
    return TrainingJob(
        name=name,
        model=ModelSpec(config={"model_type": "gpt2", "n_layer": 2, "scale": 0.5, "ids": [1, 2]}),
        data=DataSpec(path="data/*.txt"),
        training=TrainingSpec(max_steps=10, global_batch_size=8),
    )


def run(run_id: str = "manual__1", *, created_s: float = 1.0, state: JobState = JobState.QUEUED) -> RunRecord:
    one = identity(run_id)
    return RunRecord(
        run_key=one.run_key,
        identity=one,
        job=job(),
        state=state,
        created_s=created_s,
        updated_s=created_s,
        model_config={"model_type": "gpt2", "n_layer": 2},
    )


def plan(num_gpus: int = 2, gpu_type: str = "small") -> ResourcePlan:
    terms = (MemoryTerm(name="weights", num_bytes=300 * MIB, equation="4 * parameters"),)
    return ResourcePlan(
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        dp=num_gpus,
        tp=1,
        zero_stage=2,
        micro_batch_size=2,
        accumulation_steps=2,
        activation_checkpointing=False,
        memory=MemoryPrediction(
            peak_allocated_bytes=300 * MIB, required_bytes=400 * MIB, host_bytes=GIB, at="step", terms=terms
        ),
        gpu_memory_bytes=512 * MIB,
        step_time_s=0.5,
        samples_per_s=16.0,
        predicted_run_s=5.0,
        predicted_cost=0.0,
    )


def placement(**num_gpus_on: int) -> Placement:
    return Placement(allocations=tuple(NodeAllocation(node=name, num_gpus=num) for name, num in num_gpus_on.items()))


def lease(run_key: str, attempt: int = 1, *, gpu_type: str = "small", granted_s: float = 1.0, **on: int) -> Lease:
    return Lease(
        run_key=run_key,
        attempt=attempt,
        gpu_type=gpu_type,
        placement=placement(**on),
        state=LeaseState.LIVE,
        granted_s=granted_s,
        heartbeat_s=granted_s,
        expires_s=granted_s + 60,
    )


def next_attempt(number: int = 1) -> NextAttempt:
    return NextAttempt(attempt=number, reason=Reason(code=ReasonCode.BEST_PLAN), preferred=plan(1).shape)


def queue_entry(run_key: str, submitted_s: float = 1.0) -> QueueEntry:
    return QueueEntry(
        run_key=run_key,
        submitted_s=submitted_s,
        enqueued_s=submitted_s,
        plans=(plan(), plan(1)),
        next_attempt=next_attempt(),
    )


def attempt(run_key: str, number: int = 1) -> Attempt:
    return Attempt(
        run_key=run_key,
        attempt=number,
        plan=plan(),
        placement=placement(n1=2),
        created_s=1.0,
        next_attempt=next_attempt(number),
        stop_reason=Reason(code=ReasonCode.MOVED_TO_GROW),
        stop_asked_s=2.0,
        move_to=MoveTarget(plan=plan(), placement=placement(n1=1, n2=1)),
        result=AttemptResult(exit_code=0, last_step=10, total_steps=10, final_loss=1.25),
    )


def sample(run_key: str, attempt_number: int = 1, *, time_s: float = 1.0, family: str = "gpt2") -> CalibrationSample:
    return CalibrationSample(
        run_key=run_key,
        attempt=attempt_number,
        time_s=time_s,
        family=family,
        gpu_type="small",
        plan=plan(),
        predicted_bytes=300 * MIB,
        measured_bytes=310 * MIB,
        censored=False,
        versions={"torch": "2"},
    )


def launch_spec(run_dir: str, *, run_key: str = "0123456789ab", attempt_number: int = 1) -> LaunchSpec:
    return LaunchSpec(
        run_key=run_key,
        attempt=attempt_number,
        job=job(),
        plan=plan(),
        gpu=SMALL,
        placement=placement(n1=1, n2=1),
        run_dir=run_dir,
    )


def step_record(step: int, *, rank: int = 0, loss: float = 1.5) -> StepRecord:
    return StepRecord(
        rank=rank,
        step=step,
        time_s=100.0 + step,
        loss=loss,
        step_time_s=0.5,
        tokens_per_s=1000.0,
        peaks=PeakMemory(allocated_bytes=300 * MIB, reserved_bytes=320 * MIB, device_used_bytes=330 * MIB),
        capacity_bytes=512 * MIB,
    )


def manifest_text(step: int, sizes: Mapping[str, int] | None = None, rate: float | None = None) -> str:
    """What the trainer puts last into a checkpoint with files of these sizes."""
    files = tuple(FileEntry(path=name, num_bytes=size) for name, size in (sizes or {}).items())
    layout = ParallelLayout(1, 1)
    return codec.dumps(
        CheckpointManifest(step=step, layout=layout, files=files, save_id="a", rank_bytes_per_s=rate or 0.0)
    )
