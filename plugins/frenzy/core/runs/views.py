"""What can be read of queue, GPUs, memory and decisions: the answers to the ledger's API's questions.

Each is a frozen value with a JSON form (``frenzy.core.values.codec``). What changes something is in
``frenzy.core.runs.protocol``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frenzy.core.runs.ledger import JobState
from frenzy.core.scheduling.queue_usage import QuotaRow, ShareRow
from frenzy.core.values.errors import Reason
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.queue_rules import NO_RULES, QueueRules
from frenzy.core.values.resource_plan import PlanShape
from frenzy.core.values.scheduling_facts import SchedulingFacts
from frenzy.core.values.telemetry import StepPeak


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    run_key: str
    job_name: str
    dag_id: str
    run_id: str
    position: int
    state: JobState
    priority: int
    team: str
    waiting_since_s: float
    reason: Reason | None
    expected_start_s: float | None
    wanted_plan_id: str | None
    queue: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRow:
    run_key: str
    job_name: str
    dag_id: str
    run_id: str
    state: JobState
    attempt: int
    plan_id: str
    num_gpus: int
    gpu_type: str
    nodes: tuple[str, ...]
    last_step: int
    total_steps: int | None
    last_loss: float | None
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    capacity_bytes: int
    num_reschedules: int
    expected_end_s: float | None
    reason: Reason | None = None
    queue: str = "default"
    team: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """Who waits and why, who runs where; shares and quotas where there are any."""

    now_s: float
    waiting: tuple[QueueRow, ...]
    running: tuple[RunningRow, ...]
    shares: tuple[ShareRow, ...] = ()
    quotas: tuple[QuotaRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFacts:
    """What it takes to plan one job anew. total_steps: still to do when it was planned last.

    The rest as in ``PlanRequest``, but for what runs of other jobs taught.
    """

    job: TrainingJob
    model_config: Mapping[str, Any]
    total_steps: int
    excluded_shapes: tuple[PlanShape, ...] = ()
    extra_bytes_per_gpu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """All that a scheduling pass would decide on at ``taken_s``, and under which policy.

    planning: by run key. marp_policy: the memory model that plans are made with. cpus_per_gpu: the policy's.
    """

    taken_s: float
    policy: str
    marp_policy: str
    facts: SchedulingFacts
    planning: Mapping[str, PlanningFacts]
    queues: QueueRules = NO_RULES
    cpus_per_gpu: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypeRow:
    gpu_type: str
    kind: str
    memory_bytes: int
    num_gpus: int
    num_free: int
    num_suspect: int
    pool: str
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    node: str
    gpu_type: str
    state: str
    num_gpus: int
    num_free: int
    run_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusView:
    """Capacity and what is free, by type and by node."""

    types: tuple[GpuTypeRow, ...]
    nodes: tuple[NodeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMemory:
    """One attempt's memory curve: what was predicted, what each step measured, what there was."""

    attempt: int
    plan_id: str
    num_gpus: int
    predicted_peak_bytes: int
    required_bytes: int
    capacity_bytes: int
    growth_step: int | None
    outcome: Reason | None
    steps: tuple[StepPeak, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """The memory curves of a run's attempts."""

    run_key: str
    job_name: str
    state: JobState
    attempts: tuple[AttemptMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Sentences in reading order, each true by itself."""

    run_key: str
    state: JobState
    reason: Reason | None
    lines: tuple[str, ...]
