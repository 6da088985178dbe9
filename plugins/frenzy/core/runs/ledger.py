"""The book of record: runs, queue entries, leases, attempts, and how a run's state may change.

Airflow's pools mirror this; they never decide. A lease counts GPU slots on nodes. An expired
lease is suspect, not free: its slots stay held until its workers are proved gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from annotated_types import Ge, Le, Len, Lt

from frenzy.core.memory.measured_runs import MeasuredRun
from frenzy.core.memory.residuals import Residual, ResidualGroup, residual_family
from frenzy.core.values.cluster import Placement
from frenzy.core.values.codec import OMITTED_IF_EMPTY, Inlining
from frenzy.core.values.errors import ContractError, Reason
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import ModelSpec, TrainingJob
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import KEYS_IN_A_SAMPLE, KEYS_IN_AN_ATTEMPT, PeakMemory
from frenzy.core.values.prepared_data import PreparedData
from frenzy.core.values.resource_plan import PlanShape, ResourcePlan, short_hash
from frenzy.core.values.telemetry import Heartbeat

RUN_KEY_LENGTH: Final = 12
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class JobState(StrEnum):
    PENDING = "PENDING"
    PLANNED = "PLANNED"
    PREPARING = "PREPARING"
    QUEUED = "QUEUED"
    PLACED = "PLACED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    CHECKPOINTING = "CHECKPOINTING"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    FAILED_OOM = "FAILED_OOM"
    FAILED_HOST_OOM = "FAILED_HOST_OOM"
    FAILED_PRECHECKS = "FAILED_PRECHECKS"
    FAILED_NO_RESOURCE = "FAILED_NO_RESOURCE"
    FAILED_SETUP = "FAILED_SETUP"


_S = JobState
FINAL_STATES: Final = frozenset(
    {
        _S.SUCCEEDED,
        _S.CANCELLED,
        _S.FAILED,
        _S.FAILED_OOM,
        _S.FAILED_HOST_OOM,
        _S.FAILED_PRECHECKS,
        _S.FAILED_NO_RESOURCE,
        _S.FAILED_SETUP,
    }
)
ACTIVE_STATES: Final = frozenset(JobState) - FINAL_STATES
_ANY_END: Final = frozenset({_S.CANCELLED, _S.FAILED})
_ATTEMPT_ENDS: Final = frozenset(
    {_S.SUCCEEDED, _S.RECOVERING, _S.FAILED_OOM, _S.FAILED_HOST_OOM, _S.FAILED_SETUP, _S.FAILED_NO_RESOURCE}
)
TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = {
    _S.PENDING: frozenset({_S.PLANNED, _S.FAILED_PRECHECKS, _S.FAILED_NO_RESOURCE}) | _ANY_END,
    _S.PLANNED: frozenset({_S.PREPARING, _S.QUEUED, _S.FAILED_NO_RESOURCE}) | _ANY_END,
    _S.PREPARING: frozenset({_S.PLANNED, _S.QUEUED, _S.FAILED_SETUP, _S.FAILED_NO_RESOURCE}) | _ANY_END,
    _S.QUEUED: frozenset({_S.PLACED, _S.FAILED_NO_RESOURCE}) | _ANY_END,
    _S.PLACED: frozenset({_S.STARTING, _S.QUEUED, _S.FAILED_SETUP, _S.RECOVERING}) | _ANY_END,
    _S.STARTING: frozenset({_S.RUNNING, _S.CHECKPOINTING}) | _ATTEMPT_ENDS | _ANY_END,
    _S.RUNNING: frozenset({_S.CHECKPOINTING}) | _ATTEMPT_ENDS | _ANY_END,
    _S.CHECKPOINTING: _ATTEMPT_ENDS | _ANY_END,
    _S.RECOVERING: frozenset({_S.QUEUED, _S.FAILED_OOM, _S.FAILED_HOST_OOM, _S.FAILED_NO_RESOURCE, _S.FAILED_SETUP})
    | _ANY_END,
    # a cleared task starts the same run again
    **{state: frozenset({_S.PENDING, _S.PREPARING, _S.QUEUED}) for state in FINAL_STATES},
}


def check_transition(before: JobState, after: JobState) -> None:
    """Raise ContractError unless a run may go from ``before`` to ``after`` (staying is allowed)."""
    if before is not after and after not in TRANSITIONS[before]:
        raise ContractError(f"run state {before} -> {after} is not a transition")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """One pass of one training task group inside one DAG run."""

    dag_id: Annotated[str, Len(1, 250)]
    run_id: Annotated[str, Len(1, 250)]
    task_group: Annotated[str, Len(0, 250)]
    map_index: Annotated[int, Ge(-1), Lt(2**31)] = -1

    @property
    def run_key(self) -> str:
        return short_hash(self.dag_id, self.run_id, self.task_group, str(self.map_index), length=RUN_KEY_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """What profiling learned about the data. Counts may be None when the data is not local."""

    num_tokens: Annotated[int | None, Ge(0), Le(10**15)] = None
    num_rows: Annotated[int | None, Ge(0), Le(10**15)] = None
    longest_sequence_tokens: Annotated[int | None, Ge(0), Le(10**15)] = None
    vocab_size: Annotated[int | None, Ge(0), Lt(2**31)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One training run: its frozen spec, its state, and the name of its newest plan table.

    plan_table: of its candidates, which the ledger keeps apart (``LedgerTx.plan_tables``): they are long, and most
    looks at a run need none; empty before it is planned.
    owner: the user it belongs to; None where nobody is known to have started it.
    masked: paths of the spec's texts that came from a connection or a variable; see ``frenzy.core.runs.masking``.
    prepared: the data it trains on, frozen; None where its workers prepare them. prepared_before: those that its
    checkpoints were trained on, until it is known what it trains on since its tasks were cleared.
    asked_model: ``asked_model`` of the job that was given, whose revision may be a branch; the job here has a commit.
    script_content: a digest of its script's folder; empty where there is none, or whoever registered it cannot read it.
    stale_checkpoints: a digest of what its checkpoints were trained on, where it trains something else since its tasks
    were cleared: they go once workers are about to start, not for a specification that is refused.
    """

    run_key: str
    identity: RunIdentity
    job: TrainingJob
    state: JobState
    created_s: float
    updated_s: float
    reason: Reason | None = None
    model_config: Mapping[str, object] | None = None
    data_facts: DataFacts = DataFacts()
    total_steps: int | None = None
    plan_table: str = ""
    num_attempts: int = 0
    num_reschedules: int = 0
    cancel_requested: bool = False
    generation: int = 0
    owner: str | None = None
    masked: tuple[str, ...] = ()
    prepared: PreparedData | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    prepared_before: PreparedData | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    asked_model: str = field(default="", metadata=OMITTED_IF_EMPTY)
    script_content: str = field(default="", metadata=OMITTED_IF_EMPTY)
    stale_checkpoints: str = field(default="", metadata=OMITTED_IF_EMPTY)

    @property
    def commit(self) -> str | None:
        """The commit of a hub's model that the run trains, if it is known."""
        revision = self.job.model.revision
        return revision if revision is not None and _COMMIT.fullmatch(revision) else None

    def was_asked_for(self, model: ModelSpec, asked: str) -> bool:
        """Whether the run was given the same model of a hub; ``model`` may have its commit already.

        Of a run from before ``asked_model`` was kept the commit may be all that is known: then only another commit,
        asked for as such, is another model.
        """
        known = self.asked_model or ("" if self.commit else asked_model(self.job.model))
        if known and asked:
            return known == asked
        is_other = model.revision != self.commit and _COMMIT.fullmatch(model.revision or "") is not None
        return model.hub_id == self.job.model.hub_id and not (is_other and asked == asked_model(model))


def asked_model(model: ModelSpec) -> str:
    """A digest of the hub id and revision that are asked for; empty for other models."""
    return "" if model.hub_id is None else short_hash(model.hub_id, model.revision or "main", length=RUN_KEY_LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How far a run's data are prepared, beside the run: it is told often, and a run's record is long.

    number: of times that it was begun, over all registrations of the run. seen_s: of the last report.
    """

    run_key: str
    number: int
    begun_s: float
    seen_s: float
    progress: Heartbeat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAttempt:
    """What an ended attempt hands to the next planning: the loop closes by this value.

    extra_bytes_per_gpu: memory seen beyond the prediction; the next plan must have room for it.
    forecast_extra_bytes_per_gpu: the same at the run's end if growth goes on; wanted, not needed.
    preferred: the plan that the run was moved for; taken if it can still be placed. predicted_with: a sentence on the
    coefficients, where they are others than the previous plan's.
    """

    attempt: int
    reason: Reason
    previous: ResourcePlan | None = None
    preferred: PlanShape | None = None
    excluded_shapes: tuple[PlanShape, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    extra_bytes_per_gpu: int = 0
    forecast_extra_bytes_per_gpu: int = 0
    checkpoint_step: int | None = None
    not_before_s: float = 0.0
    predicted_with: str = field(default="", metadata=OMITTED_IF_EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A run that waits for GPUs, with its plans in the order they are wanted."""

    run_key: str
    submitted_s: float
    enqueued_s: float
    plans: tuple[ResourcePlan, ...]
    next_attempt: NextAttempt
    hold: Reason | None = None
    ordered: bool = False
    position: int | None = None
    expected_start_s: float | None = None


class LeaseState(StrEnum):
    LIVE = "live"
    SUSPECT = "suspect"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """GPU slots on nodes, held for one attempt of one run."""

    run_key: str
    attempt: int
    gpu_type: str
    placement: Placement
    state: LeaseState
    granted_s: float
    heartbeat_s: float
    expires_s: float
    ended_s: float | None = None
    end_reason: Reason | None = None

    @property
    def num_gpus(self) -> int:
        return self.placement.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTarget:
    """What a running job is to have once it was moved."""

    plan: ResourcePlan
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Inlining):
    """One launch of a run's workers, with what was predicted and what was measured.

    first_step_s: when its first step was done. stop_asked_s: when it was decided that it is to save a
    checkpoint and stop, for stop_reason. move_to: where the scheduler wants the run to go on.
    peaks: of any rank in any step. explained_peak_bytes: what tensors held at most before unexplained growth set in.
    growth_step: the step at which it set in, if it did.
    lost_nodes: of its placement's, those to blame for its end. releases: of the script's libraries, as its agent says.
    """

    run_key: str
    attempt: int
    plan: ResourcePlan
    placement: Placement
    created_s: float
    next_attempt: NextAttempt
    launcher_ref: str | None = None
    started_s: float | None = None
    first_step_s: float | None = None
    ended_s: float | None = None
    stop_reason: Reason | None = None
    stop_asked_s: float | None = None
    move_to: MoveTarget | None = None
    extra_bytes_per_gpu: int = 0
    forecast_extra_bytes_per_gpu: int = 0
    result: AttemptResult | None = None
    outcome: Reason | None = None
    last_step: int = 0
    last_loss: float | None = None
    step_time_s: float | None = None
    peaks: PeakMemory | None = field(default=None, metadata=KEYS_IN_AN_ATTEMPT)
    explained_peak_bytes: int | None = None
    growth_step: int | None = None
    checkpoint_step: int | None = None
    lost_nodes: tuple[str, ...] = ()
    releases: Mapping[str, str] = field(default_factory=dict, metadata=OMITTED_IF_EMPTY)

    @property
    def is_live(self) -> bool:
        return self.ended_s is None

    @property
    def reached_step(self) -> int:
        """Of the run: the step of the checkpoint that it goes on from, until a step of its own is done."""
        return max(self.last_step, self.next_attempt.checkpoint_step or 0)

    @property
    def measured_peak_bytes(self) -> int | None:
        """What tensors held at most on any GPU; None before the first step."""
        return None if self.peaks is None else self.peaks.allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSample(Inlining):
    """Predicted and measured peak of one ended attempt; censored when it ran out of memory.

    predicted_bytes: by the memory model alone; 0 of a script, whose family is its ``script_key``. measured_bytes: held
    by tensors, before growth that no plan explains, or the card's memory when censored. peaks: as in Attempt. kind:
    None if the GPU type is gone. step_time_s: of the attempt's last steps; None where it did too few. is_whole: the
    attempt came to its end.
    """

    run_key: str
    attempt: int
    time_s: float
    family: str
    gpu_type: str
    plan: ResourcePlan
    predicted_bytes: int
    measured_bytes: int
    censored: bool
    versions: Mapping[str, str]
    kind: DeviceKind | None = None
    adapters: bool = False
    peaks: PeakMemory | None = field(default=None, metadata=KEYS_IN_A_SAMPLE)
    step_time_s: float | None = field(default=None, metadata=OMITTED_IF_EMPTY)
    is_whole: bool = False

    @property
    def measured_run(self) -> MeasuredRun | None:
        """What it says of the script's other plans; None where the kind of GPU is not known."""
        if self.kind is None:
            return None
        return MeasuredRun(
            kind=self.kind,
            shape=self.plan.shape,
            peak_bytes=self.measured_bytes,
            ran_out=self.censored,
            is_whole=self.is_whole,
        )

    @property
    def residual(self) -> Residual | None:
        """What the next plan learns from it; None where nothing was predicted, or the kind of GPU is not known."""
        if self.kind is None or not self.predicted_bytes:
            return None
        return Residual(
            group=ResidualGroup(
                kind=self.kind,
                family=residual_family(self.family, adapters=self.adapters),
                gpu_type=self.gpu_type,
                zero_stage=self.plan.zero_stage,
                checkpointing=self.plan.activation_checkpointing,
                offload=self.plan.offload_optimizer,
            ),
            predicted_bytes=self.predicted_bytes,
            measured_bytes=self.measured_bytes,
            censored=self.censored,
            step_ratio=self._step_ratio,
        )

    @property
    def _step_ratio(self) -> float | None:
        """A virtual GPU is as fast as its throttle lets it be: what differs is the machine's other load."""
        predicted_s = self.plan.model_step_s or self.plan.step_time_s
        is_told = self.kind is DeviceKind.CUDA and self.step_time_s is not None and predicted_s > 0
        return (self.step_time_s or 0.0) / predicted_s if is_told else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a run's history."""

    run_key: str
    time_s: float
    kind: str
    text: str
    attempt: int | None = None


def since_registered(run: RunRecord, attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """Those of ``attempts`` that were made since the run's tasks were last cleared."""
    return tuple(each for each in attempts if each.created_s >= run.created_s)


def versions_key(versions: Mapping[str, str]) -> str:
    """A digest of library versions: residuals hold only for the releases they were measured with."""
    return short_hash(*(f"{name}={versions[name]}" for name in sorted(versions)))
