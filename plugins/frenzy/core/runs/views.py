"""What can be read of queue, GPUs, memory and decisions: the answers to the ledger's API's questions.

Each is a frozen value with a JSON form (``frenzy.core.values.codec``). What changes something is in
``frenzy.core.runs.protocol``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frenzy.core.runs.ledger import JobState
from frenzy.core.values.errors import Reason
from frenzy.core.values.job import TrainingJob, TriggerSpec
from frenzy.core.values.queue_rules import NO_RULES, QueueRules, QuotaRow, ShareRow
from frenzy.core.values.resource_plan import Candidate, PlanShape
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
    owner: str | None = None


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
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A specification to begin with; title: what it is, in a sentence."""

    name: str
    title: str
    yaml_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftView:
    """What would become of a job if it were submitted now.

    shown: the specification as its DAG shows it. total_steps: what times are for. model: what is trained, in one line;
    None where no model is named or read. model_notes: what a user may not expect of it. note: what is not known yet.
    candidates: those that fit, best first, then refused ones; long lists are cut, so ``num_fitting`` and
    ``num_refused`` count all. reason: why none fits, with a remedy; else why the next pass would start it with
    ``plan_id``, or would not. replaces: whether a job of its name is stored already. trigger: when its DAG runs by
    itself; next_starts_s: the next moments of its schedule, seconds of the epoch. tuned: what was changed so that a
    plan fits, where that was asked for; tuned_yaml: the specification with it.
    """

    name: str
    dag_id: str
    shown: str
    total_steps: int
    replaces: bool = False
    candidates: tuple[Candidate, ...] = ()
    num_fitting: int = 0
    num_refused: int = 0
    model: str | None = None
    model_notes: tuple[str, ...] = ()
    note: str | None = None
    reason: Reason | None = None
    plan_id: str | None = None
    position: int | None = None
    expected_start_s: float | None = None
    trigger: TriggerSpec = TriggerSpec()
    next_starts_s: tuple[float, ...] = ()
    tuned: tuple[str, ...] = ()
    tuned_yaml: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """What would become of a run's job with other values; yaml_text: its specification then."""

    draft: DraftView
    yaml_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingRow:
    """A run whose data are being prepared; progress: what goes on, and how far it is."""

    run_key: str
    job_name: str
    dag_id: str
    run_id: str
    since_s: float
    progress: str
    queue: str = "default"
    team: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """Who waits and why, who runs where, whose data are being prepared; shares and quotas where there are any."""

    now_s: float
    waiting: tuple[QueueRow, ...]
    running: tuple[RunningRow, ...]
    shares: tuple[ShareRow, ...] = ()
    quotas: tuple[QuotaRow, ...] = ()
    preparing: tuple[PreparingRow, ...] = ()


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
class HolderRow:
    """How many GPUs of one node a run holds."""

    run_key: str
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """holders: the runs that the reader may see."""

    node: str
    gpu_type: str
    state: str
    num_gpus: int
    num_free: int
    holders: tuple[HolderRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusView:
    """Capacity and what is free, by type and by node."""

    types: tuple[GpuTypeRow, ...]
    nodes: tuple[NodeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What tensors held on one rank's GPU: at most, and in its last step. num_alloc_retries: how often
    the allocator had to give back what it kept and try again.
    """

    rank: int
    node: str | None
    peak_bytes: int
    last_bytes: int
    last_step: int
    capacity_bytes: int
    num_alloc_retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMemory:
    """One attempt's memory curve: what was predicted, what each step measured, what there was; and of each rank."""

    attempt: int
    plan_id: str
    num_gpus: int
    predicted_peak_bytes: int
    required_bytes: int
    capacity_bytes: int
    growth_step: int | None
    outcome: Reason | None
    steps: tuple[StepPeak, ...]
    ranks: tuple[RankMemory, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """A part of one rank's log. next_offset: in bytes, where the next part begins. is_over: no more will come."""

    attempt: int
    rank: int
    text: str
    next_offset: int
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedModel:
    """The model that a run left. path: None where it was cleaned away, or a script wrote none; loss: of the last."""

    run_key: str
    job_name: str
    dag_id: str
    run_id: str
    team: str
    owner: str | None
    ended_s: float
    path: str | None
    num_bytes: int
    steps: int
    loss: float | None
    plan_id: str
    num_attempts: int
    num_gpus: int
    run_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A file of a finished model. name: its path in the model's folder."""

    name: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A complete checkpoint of a run; it resumes from the newest."""

    step: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRow:
    """Memory of one GPU of a run that is on; measured: None before its first step."""

    job_name: str
    run_key: str
    gpu_type: str
    predicted_bytes: int
    measured_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMetrics:
    """How everything stands, in numbers.

    unplaced_jobs: by reason code; jobs: by state; queue_wait_s: by quantile, of jobs that wait now; gpus: by (type,
    use); ooms: by kind, attempts: by reason code, both since the ledger was made.
    """

    unplaced_jobs: Mapping[str, int]
    jobs: Mapping[str, int]
    queue_wait_s: Mapping[str, float]
    gpus: Mapping[tuple[str, str], int]
    peaks: tuple[PeakRow, ...]
    ooms: Mapping[str, int]
    attempts: Mapping[str, int]
    pass_s: float
