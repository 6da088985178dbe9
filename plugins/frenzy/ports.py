"""What the use cases need from the outside world, as protocols.

One contract test of each port runs against every implementation, those in memory (``tests/in_memory``) included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from frenzy.core.memory.residuals import Residual
from frenzy.core.runs.access import JobRecord
from frenzy.core.runs.ledger import (
    Attempt,
    CalibrationSample,
    Event,
    JobState,
    Lease,
    Preparation,
    QueueEntry,
    RunIdentity,
    RunRecord,
)
from frenzy.core.runs.log_part import LogPart
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.runs.usage import LeaseSpan
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason
from frenzy.core.values.launch import AttemptResult, Control, LaunchSpec
from frenzy.core.values.prepared_data import PreparingResult, PreparingSpec
from frenzy.core.values.queue_rules import QueueRules
from frenzy.core.values.resource_plan import Candidate
from frenzy.core.values.telemetry import Heartbeat, StepRecord


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds since the epoch."""
        ...


class Inventory(Protocol):
    def cluster(self) -> Cluster:
        """The GPU types and nodes there are now. Raises SpecError for a bad cluster file."""
        ...


class QueueSource(Protocol):
    def rules(self) -> QueueRules:
        """Shares of queues and quotas as they are now."""
        ...


class LedgerTx(Protocol):
    """One transaction on the ledger. Values go in and come out; nothing is shared.

    ``put_lease`` raises ``LedgerConflict`` rather than break an invariant: slots leased on a
    node never exceed the node's, and a run has at most one lease that has not ended.
    """

    def read_ahead(self, run_keys: Iterable[str]) -> None:
        """Read these runs, their attempts and their places in the queue at once: asked for, they are known by then."""
        ...

    def run(self, run_key: str) -> RunRecord | None: ...
    def runs(
        self,
        *,
        states: Iterable[JobState] | None = None,
        dag_run: tuple[str, str] | None = None,
        dag_ids: Collection[str] | None = None,
        job_name: str | None = None,
        limit: int | None = None,
    ) -> tuple[RunRecord, ...]:
        """Newest first. dag_run: only of that (DAG id, run id); dag_ids: of these DAGs; job_name: of jobs so called."""
        ...

    def run_states(self) -> Mapping[JobState, int]:
        """How many runs are in each state."""
        ...

    def dag_ids(self) -> frozenset[str]:
        """The DAGs that have runs."""
        ...

    def put_run(self, record: RunRecord) -> None: ...

    def plan_tables(self, names: Iterable[str]) -> Mapping[str, tuple[Candidate, ...]]:
        """The plan tables called ``names``, those of a run's ``plan_table``; what is not known is left out."""
        ...

    def put_plan_table(self, candidates: tuple[Candidate, ...]) -> str:
        """Keep ``candidates`` if they are new; their name, which is that of equal ones. Empty for none."""
        ...

    def preparations(self, run_keys: Iterable[str]) -> Mapping[str, Preparation]:
        """How far the data of those runs are prepared, by run key; of some nothing may be known."""
        ...

    def put_preparation(self, preparation: Preparation) -> None: ...

    def queue(self) -> tuple[QueueEntry, ...]:
        """Ordered by (submitted_s, run_key)."""
        ...

    def queue_entry(self, run_key: str) -> QueueEntry | None: ...
    def put_queue_entry(self, entry: QueueEntry) -> None: ...
    def put_holds(self, entries: Sequence[QueueEntry]) -> None:
        """Keep ``hold``, ``position`` and ``expected_start_s`` of these, all at once, and nothing else."""
        ...

    def drop_queue_entry(self, run_key: str) -> None: ...

    def held_leases(self) -> tuple[Lease, ...]:
        """Live and suspect ones, by (granted_s, run_key)."""
        ...

    def lease_spans(self, since_s: float) -> tuple[LeaseSpan, ...]:
        """Of all leases, ended ones too, that held GPUs after ``since_s``, by (granted_s, run_key)."""
        ...

    def lease(self, run_key: str, attempt: int) -> Lease | None: ...
    def put_lease(self, lease: Lease) -> None: ...

    def attempts(self, run_key: str) -> tuple[Attempt, ...]:
        """Ascending by attempt."""
        ...

    def attempt_outcomes(self) -> Mapping[str, int]:
        """How many attempts ended with each reason code."""
        ...

    def put_attempt(self, attempt: Attempt) -> None: ...

    def cluster(self) -> Cluster: ...
    def put_cluster(self, cluster: Cluster) -> None: ...

    def events(self, run_key: str) -> tuple[Event, ...]: ...
    def add_event(self, event: Event) -> None: ...

    def samples(self, *, family: str | None = None, limit: int = 1000) -> tuple[CalibrationSample, ...]: ...
    def add_sample(self, sample: CalibrationSample) -> None: ...
    def residuals(self, *, versions: str, except_run: str, limit: int = 1000) -> tuple[Residual, ...]:
        """What the newest samples of other runs taught, with libraries of that ``versions_key``; newest first."""
        ...

    def job(self, name: str) -> JobRecord | None:
        """Whose the stored job is."""
        ...

    def put_job(self, record: JobRecord) -> None: ...
    def drop_job(self, name: str) -> None: ...

    def started_by(self, dag_id: str, run_id: str) -> str | None:
        """The user who triggered the DAG run, else the owner that its DAG names; None where there is neither."""
        ...

    def has_dag(self, dag_id: str) -> bool:
        """Whether Airflow has a DAG of that name that is no stored job's."""
        ...

    def mirror_pools(self, cluster: Cluster) -> None:
        """Give each GPU type a pool with as many slots as the type has GPUs."""
        ...

    def outlived(self) -> tuple[str, ...]:
        """The keys of active runs whose DAG run Airflow has ended or deleted, in order."""
        ...

    def launch_is_over(self, identity: RunIdentity) -> bool:
        """Whether the run's launch task has ended, or is not there: as it stands it starts no workers any more."""
        ...

    def assign_launch_pool(self, identity: RunIdentity, pool: str, num_slots: int) -> bool:
        """Let the run's launch task count ``num_slots`` slots of ``pool``.

        False when there is no such task instance, or it is past the point where it may be set.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedAttempt:
    """What a heartbeat changes: how far an attempt is, and until when its lease lasts."""

    attempt: Attempt
    lease: Lease


class LedgerStore(Protocol):
    def transaction(self) -> AbstractContextManager[LedgerTx]:
        """Exclusive: one writer at a time over all processes. Commits on a clean exit."""
        ...

    def reading(self) -> AbstractContextManager[LedgerTx]:
        """A consistent view without the writers' lock; writing through it is an error."""
        ...

    def renew(self, before: LeasedAttempt, after: LeasedAttempt) -> bool:
        """Put ``after``, of the same attempt, in the place of ``before`` without the writers' lock.

        False where one of the two is not as it was, since a writer has changed it: the attempt may have changed
        nevertheless. A heartbeat that comes while a writer is at work on the same attempt may be lost.
        """
        ...


class WorkersState(StrEnum):
    """What a launcher can prove about the workers of one attempt."""

    NOT_STARTED = "not_started"
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersAccount:
    """What a launcher knows of one attempt's workers.

    reason: why they ended, or were given up, where it knows more than their own result says;
    lost_nodes: nodes of the placement to blame for that. waiting: what keeps them from beginning.
    running_since_s: when the last of them began, in seconds since the epoch; None while one has not, or nobody knows.
    """

    state: WorkersState
    reason: Reason | None = None
    lost_nodes: tuple[str, ...] = ()
    waiting: Reason | None = None
    running_since_s: float | None = None


class Launcher(Protocol):
    """Starts and stops the workers of one attempt; every call may be repeated.

    Raises TemporaryError where the cluster cannot be asked, except ``state`` and ``account``, which
    then say UNKNOWN.
    """

    def launch(self, spec: LaunchSpec) -> str:
        """Start the workers; returns a reference that finds them again. Never starts them twice.

        Raises TemporaryError with QUOTA_EXCEEDED where a quota leaves no room for them now, with API_UNREACHABLE
        where the cluster could not make them for a while.
        """
        ...

    def state(self, spec: LaunchSpec) -> WorkersState: ...

    def account(self, spec: LaunchSpec) -> WorkersAccount:
        """The state with all that is known beside it. Workers that will never begin are given up here."""
        ...

    def stop(self, spec: LaunchSpec, *, grace_s: float) -> None:
        """Ask the workers to end, and end them after ``grace_s``. Returns at once."""
        ...

    def remove(self, run_key: str, attempt: int) -> None:
        """Remove whatever is left of an attempt that has ended, its workers too; their output is kept."""
        ...

    def remains(self) -> tuple[tuple[str, int], ...]:
        """(run key, attempt) of which something is left that ``remove`` would remove, ascending."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparerAccount:
    """What is known of the process that prepares a run's data.

    exit_code: once it is gone, where somebody saw it end. reason: why it ended, or was given up, where more is known
    than it says itself. waiting: what keeps it from beginning. output: its last words, where nobody else kept them.
    """

    state: WorkersState
    exit_code: int | None = None
    reason: Reason | None = None
    waiting: Reason | None = None
    output: str = ""


class Preparer(Protocol):
    """Starts and stops the process that prepares a run's data, which holds no GPU; every call may be repeated.

    Raises TemporaryError where the cluster cannot be asked, except ``account``, which then says UNKNOWN.
    """

    def found(self, run_key: str) -> int | None:
        """The number of a process that is at work on the run's data already."""
        ...

    def start(self, spec: PreparingSpec, tell: Callable[[str], None]) -> None:
        """Start the process; each line that it writes is told where it is at hand."""
        ...

    def account(self, spec: PreparingSpec) -> PreparerAccount:
        """One look. A process that will never begin is given up here."""
        ...

    def stop(self, run_key: str) -> None:
        """End whatever prepares the run's data, and remove what is left of it."""
        ...

    def remains(self) -> tuple[str, ...]:
        """Runs of which ``stop`` would end or remove something."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file to be handed on, however large. version: another one once its content is.

    parts: its bytes from one offset to another, a few MiB at a time. Raises OSError where it changes meanwhile.
    """

    num_bytes: int
    version: str
    parts: Callable[[int, int], Iterator[bytes]]


class RunStore(Protocol):
    """The run directory: the only thing that workers and Airflow share."""

    def put_spec(self, spec: LaunchSpec) -> None:
        """Write spec.json and ds_config.json of the attempt."""
        ...

    def spec(self, run_key: str, attempt: int) -> LaunchSpec | None:
        """The specification of the workers, if they left it as it was. To act on, ask the ledger."""
        ...

    def put_preparing(self, spec: PreparingSpec) -> None:
        """Write what the process that prepares is told, and make the folder that it writes to."""
        ...

    def preparing_sign(self, spec: PreparingSpec) -> Heartbeat | None:
        """Its last sign of progress; what those made who help with the same is counted in."""
        ...

    def preparing_result(self, spec: PreparingSpec) -> PreparingResult | None: ...
    def put_control(self, run_key: str, attempt: int, control: Control) -> None: ...
    def put_note(self, run_key: str, attempt: int, name: str, text: str) -> None:
        """Keep what a launcher has to remember of the attempt under ``name``."""
        ...

    def note(self, run_key: str, attempt: int, name: str) -> str | None: ...
    def put_log(self, run_key: str, attempt: int, name: str, text: str) -> None:
        """Output of workers that could not keep it themselves; ``name`` is the file's."""
        ...

    def put_result(self, run_key: str, attempt: int, result: AttemptResult) -> None:
        """The account of workers that could not write it themselves."""
        ...

    def result(self, run_key: str, attempt: int) -> AttemptResult | None: ...

    def telemetry(self, run_key: str, attempt: int, cursor: TelemetryCursor) -> TelemetryPage:
        """Records written since ``cursor``, by step per rank; of very many the first, all nodes equally far.

        Who looks less than every few seconds finds some of the last minute's as one for several steps.
        """
        ...

    def heartbeats(self, run_key: str, attempt: int, *, num_nodes: int) -> tuple[Heartbeat, ...]:
        """The last signs of progress of the nodes that gave any."""
        ...

    def telemetry_sample(self, run_key: str, attempt: int, *, most_records: int) -> tuple[StepRecord, ...]:
        """About so many records at most, spread over the attempt, the newest among them, by step per rank."""
        ...

    def newest_checkpoint(self, run_key: str) -> int | None:
        """The step of the newest complete checkpoint."""
        ...

    def checkpoint_steps(self, run_key: str) -> tuple[int, ...]:
        """Steps of complete checkpoints, ascending."""
        ...

    def tracked(self, run_key: str) -> tuple[TrackedRun, ...]:
        """What trackers have of the run, as its workers tell it."""
        ...

    def checkpoint_rate(self, run_key: str) -> float | None:
        """Bytes in a second that the slowest rank of the newest complete checkpoint wrote; None where unmeasured."""
        ...

    def model_files(self, run_key: str) -> Mapping[str, int]:
        """Sizes of the model's files by their paths in its folder; none where there is no model, or no more."""
        ...

    def model_file(self, run_key: str, name: str) -> StoredFile | None:
        """One of them; None for any other name, wherever that leads."""
        ...

    def log_part(
        self,
        run_key: str,
        attempt: int,
        *,
        rank: int = 0,
        offset: int | None = None,
        whole_lines: bool = False,
        max_bytes: int = 65536,
        hidden: Sequence[bytes] = (),
    ) -> LogPart:
        """A rank's output from byte ``offset`` on; None: its end, from the start of a line where it has one.

        For rank 0, if it never wrote any, that of its pod, which died before. At most ``max_bytes``.
        hidden: shown as stars, the longest first, also where the part begins or ends within one.
        whole_lines: a line that is not yet ended is left for the next call.
        """
        ...

    def run_dir(self, run_key: str) -> str: ...
    def clear_reports(self, run_key: str, attempt: int) -> None:
        """Forget result, telemetry and logs of an attempt whose workers were not started yet."""
        ...

    def clear_checkpoints(self, run_key: str) -> None:
        """Forget all checkpoints, and how trackers call the run: it starts over with another spec."""
        ...

    def clean(self, run_key: str, *, keep_model: bool, dry_run: bool) -> int:
        """Bytes of the run's files, its finished model apart with ``keep_model``; removed unless ``dry_run``."""
        ...

    def clean_data(self, folders: Iterable[str], *, dry_run: bool) -> int:
        """Bytes of ``folders`` of prepared data, as paths below the storage's root; removed unless ``dry_run``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryCursor:
    """How far telemetry was read.

    next_chunks: of each node's history, as (node, chunk) pairs; empty: from the start of all nodes that are found.
    steps: the newest of each rank, as (rank, step) pairs.
    """

    next_chunks: tuple[tuple[int, int], ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def start(num_nodes: int) -> TelemetryCursor:
        """Before the first record of so many nodes, so that none has to be looked for."""
        return TelemetryCursor(next_chunks=tuple((node, 0) for node in range(num_nodes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryPage:
    records: tuple[StepRecord, ...]
    cursor: TelemetryCursor


_MOST_PAGES: Final = 10


def telemetry_records(
    runs: RunStore, run_key: str, attempt: int, cursor: TelemetryCursor = TelemetryCursor()
) -> Iterator[StepRecord]:
    """The attempt's records since ``cursor``, page by page; so many pages hold some 100,000 steps and ranks."""
    for _ in range(_MOST_PAGES):
        page = runs.telemetry(run_key, attempt, cursor)
        if page.cursor == cursor:
            return
        yield from page.records
        cursor = page.cursor


class JobStore(Protocol):
    """The jobs folder: specs that have a DAG of their own."""

    def put(self, name: str, yaml_text: str) -> bool:
        """Store or replace; True when the content changed."""
        ...

    def get(self, name: str) -> str | None: ...
    def names(self) -> Sequence[str]: ...
    def remove(self, name: str) -> bool: ...


class LedgerConflict(Exception):
    """A write would break an invariant of the ledger; take a new snapshot and decide again."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.sentence)
        self.reason = reason
