"""The messages between Airflow's tasks, triggers, the CLI, the pages and the ledger's API.

Each is a frozen value with a JSON form (``frenzy.core.values.codec``). Which endpoint takes and answers what is said in
``frenzy.api.endpoints``; what is only read is in ``frenzy.core.runs.views``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Ge, Le, Len, Lt

from frenzy.core.runs.ledger import (
    RUN_KEY_LENGTH,
    Attempt,
    DataFacts,
    Event,
    JobState,
    Lease,
    NextAttempt,
    Preparation,
    QueueEntry,
    RunIdentity,
    RunRecord,
)
from frenzy.core.values.codec import OMITTED_IF_EMPTY, Inlining
from frenzy.core.values.errors import Reason
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import AttemptResult, LaunchSpec, Step
from frenzy.core.values.peak_memory import KEYS_IN_AN_ATTEMPT, Bytes, PeakMemory
from frenzy.core.values.prepared_data import PreparedData, PreparingSpec
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.telemetry import Heartbeat

_Seconds = Annotated[float, Ge(0), Le(1e12)]
_MoreBytes = Annotated[int, Ge(-(2**50)), Le(2**50)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRun:
    """model_config: the complete Hugging Face config. masked, asked_model, script_content: as in RunRecord."""

    identity: RunIdentity
    job: TrainingJob
    model_config: Mapping[str, Any]
    data_facts: DataFacts
    masked: tuple[str, ...] = ()
    asked_model: Annotated[str, Len(0, RUN_KEY_LENGTH)] = field(default="", metadata=OMITTED_IF_EMPTY)
    script_content: Annotated[str, Len(0, RUN_KEY_LENGTH)] = field(default="", metadata=OMITTED_IF_EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """All that is known of one run, its masked texts left out. why: where it is and why, for people.

    candidates: its plans, best first, then refused ones; none in a list of runs.
    """

    run: RunRecord
    candidates: tuple[Candidate, ...] = ()
    queue_entry: QueueEntry | None = None
    lease: Lease | None = None
    attempts: tuple[Attempt, ...] = ()
    events: tuple[Event, ...] = ()
    preparation: Preparation | None = None
    why: str = ""


class DirectiveKind(StrEnum):
    CONTINUE = "continue"
    CHECKPOINT_AND_STOP = "checkpoint_and_stop"
    KILL = "kill"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingReport:
    """The run's data are about to be prepared (``begins``), or go on being.

    found: the number of a process that does so already, for one that begins to look after it.
    """

    begins: bool = False
    found: Annotated[int | None, Ge(1), Lt(2**31)] = None
    progress: Heartbeat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingDirective:
    """CONTINUE; ENDED: the run has its data, or needs none any more; KILL: it was cancelled.

    spec: what to prepare, every text as it is; in answer to a report that begins alone.
    """

    kind: DirectiveKind
    reason: Reason | None = None
    spec: PreparingSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedReport:
    """What the run is to train on, or why it has nothing."""

    prepared: PreparedData | None = None
    reason: Reason | None = None


class PlaceStatus(StrEnum):
    WAITING = "waiting"
    PLACED = "placed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """Where a run stands in the queue, or where it was placed.

    PLACED carries the attempt's launch spec, its masked texts left out, and so does CANCELLED while its workers have
    yet to end; the others carry their reason.
    """

    run_key: str
    status: PlaceStatus
    reason: Reason | None = None
    position: int | None = None
    expected_start_s: float | None = None
    spec: LaunchSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """What the ledger wants of an attempt; the answer to a heartbeat or a report.

    spec: their specification, every text as it is; in answer to ``launching`` alone, where they may be started.
    """

    kind: DirectiveKind
    reason: Reason | None = None
    spec: LaunchSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    launcher_ref: Annotated[str, Len(0, 1024)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport(Inlining):
    """How far an attempt is. releases: as of ``Attempt``, once they are known."""

    last_step: Step
    last_loss: float | None = None
    step_time_s: _Seconds | None = None
    first_step_s: _Seconds | None = None
    peaks: PeakMemory | None = field(default=None, metadata=KEYS_IN_AN_ATTEMPT)
    explained_peak_bytes: Bytes | None = None
    growth_step: Step | None = None
    checkpoint_step: Step | None = None
    releases: Annotated[Mapping[str, str], Len(0, 3)] = field(default_factory=dict, metadata=OMITTED_IF_EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureReport:
    """The monitor wants the run moved.

    extra_bytes_per_gpu: memory beyond the prediction seen so far, which the next plan must have
    room for. forecast_extra_bytes_per_gpu: the same at the run's end if growth goes on.
    """

    reason: Reason
    progress: ProgressReport
    extra_bytes_per_gpu: _MoreBytes
    forecast_extra_bytes_per_gpu: _MoreBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """The workers are proved gone.

    result: the workers' own account; None when they left none. reason: what is known beside it, of
    pods and nodes. lost_nodes: those to blame, which the run is not to use again.
    """

    result: AttemptResult | None = None
    reason: Reason | None = None
    lost_nodes: tuple[str, ...] = ()
    progress: ProgressReport | None = None


class VerdictKind(StrEnum):
    DONE = "done"
    RETRY = "retry"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What follows after an attempt."""

    kind: VerdictKind
    reason: Reason
    next_attempt: NextAttempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRun:
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """dag_run: (DAG id, run id) of the task that asks; the job then belongs to who started that run."""

    yaml_text: str
    dag_run: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """A specification as it is being written. tune: change it as little as makes a plan fit."""

    yaml_text: str
    tune: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The job of a run with other values.

    changes: by the dotted path of a field; null leaves it out. micro_batch_size: of the plans that are looked at. It is
    the plan's to choose, so no specification names it. tune: as in JobDraft, after the changes.
    """

    changes: Annotated[Mapping[str, Any], Len(0, 64)] = field(default_factory=dict)
    micro_batch_size: Annotated[int, Ge(1), Le(1_000_000)] | None = None
    tune: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    name: str
    dag_id: str
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """The plans that a run would get."""

    candidates: tuple[Candidate, ...]
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that may be cleaned."""

    run_key: str
    job_name: str
    state: JobState
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """Which run: one that ended ``older_than_s`` ago. models: its finished model, too. dry_run: nothing is removed."""

    older_than_s: _Seconds
    models: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedRun:
    """num_bytes: of the files that were removed, or would be."""

    run_key: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileTarget:
    """A held lease whose workers should be looked at; masked texts left out."""

    run_key: str
    attempt: int
    suspect: bool
    stop: bool
    spec: LaunchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileFinding:
    """What a reconciliation saw of one attempt; reason and lost_nodes as in EndReport."""

    run_key: Annotated[str, Len(1, 64)]
    attempt: Annotated[int, Ge(0), Lt(2**31)]
    workers: Annotated[str, Len(0, 64)]
    result: AttemptResult | None = None
    reason: Reason | None = None
    lost_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    findings: tuple[ReconcileFinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSummary:
    num_suspect: int
    num_released: int
    num_started: int
    lines: tuple[str, ...] = ()
