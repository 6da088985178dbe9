"""Where the time of one job of the mix went, as ledger, history and telemetry tell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from frenzy.core.runs.ledger import Attempt, Event, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.telemetry import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Parts of a job's time, or their averages, in seconds; together they are its completion time.

    to_queue: from the trigger of its DAG until the scheduler knew it. waiting: in the queue. launching: from the
    grant of GPUs until the workers were started. starting: from there to the beginning of the first step. stepping:
    the sum of the steps' own times. between: from the first step to the last, beside them. leaving: from the last
    step until the GPUs were free. again: from there until it was queued for its next attempt.
    """

    to_queue: float = 0.0
    waiting: float = 0.0
    launching: float = 0.0
    starting: float = 0.0
    stepping: float = 0.0
    between: float = 0.0
    leaving: float = 0.0
    again: float = 0.0

    @property
    def beside_s(self) -> float:
        """How long GPUs were held beside steps."""
        return self.launching + self.starting + self.between + self.leaving

    @property
    def total_s(self) -> float:
        return self.to_queue + self.waiting + self.stepping + self.beside_s + self.again


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAttempt:
    """One attempt; moments in seconds since the epoch, None for what it did not come to.

    queued_s: it waited for GPUs. granted_s: it had them. started_s: its workers were started. released_s: its GPUs
    were free, and if it was the last one its job done. first_step_s, last_step_s: when these steps ended.
    step_times_s: of all its steps. predicted_step_s: by MARP; None where the job's number of steps is not known.
    """

    plan_id: str
    queued_s: float
    granted_s: float
    started_s: float | None
    first_step_s: float | None
    last_step_s: float | None
    released_s: float
    step_times_s: tuple[float, ...]
    predicted_step_s: float | None

    @property
    def phases(self) -> Phases:
        """Its part of its job's time."""
        waiting = self.granted_s - self.queued_s
        if self.started_s is None:
            return Phases(waiting=waiting, launching=self.released_s - self.granted_s)
        launching = self.started_s - self.granted_s
        if self.first_step_s is None or self.last_step_s is None:
            return Phases(waiting=waiting, launching=launching, starting=self.released_s - self.started_s)
        later_s = sum(self.step_times_s[1:])
        return Phases(
            waiting=waiting,
            launching=launching,
            starting=self.first_step_s - self.step_times_s[0] - self.started_s,
            stepping=self.step_times_s[0] + later_s,
            between=self.last_step_s - self.first_step_s - later_s,
            leaving=self.released_s - self.last_step_s,
        )

    @property
    def step_error(self) -> float | None:
        """Measured over predicted step time, less one."""
        if not self.predicted_step_s or not self.step_times_s:
            return None
        return fmean(self.step_times_s) / self.predicted_step_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """One job as it went, from the trigger of its DAG (seconds since the epoch) to the end of its last workers."""

    name: str
    triggered_s: float
    attempts: tuple[MeasuredAttempt, ...]

    @property
    def queued_s(self) -> float:
        """When the scheduler first knew it."""
        return self.attempts[0].queued_s

    @property
    def end_s(self) -> float:
        return self.attempts[-1].released_s

    @property
    def first_start_s(self) -> float:
        """From the trigger to the first grant of GPUs."""
        return self.attempts[0].granted_s - self.triggered_s

    @property
    def jct_s(self) -> float:
        return self.end_s - self.triggered_s

    @property
    def num_moves(self) -> int:
        return len(self.attempts) - 1

    @property
    def beside_s(self) -> float:
        """How long an attempt of it held GPUs beside its steps, on average."""
        return fmean(each.phases.beside_s for each in self.attempts)

    @property
    def slowness(self) -> float:
        """Time of its steps over what was predicted for them; 1 where that is not known."""
        known = [(each.step_times_s, each.predicted_step_s) for each in self.attempts if each.predicted_step_s]
        predicted_s = sum(len(steps) * step_s for steps, step_s in known if step_s)
        return sum(sum(steps) for steps, _ in known) / predicted_s if predicted_s else 1.0

    @property
    def phases(self) -> Phases:
        """All of its time."""
        gaps = zip(self.attempts, self.attempts[1:], strict=False)
        own = Phases(
            to_queue=self.queued_s - self.triggered_s,
            again=sum(after.queued_s - before.released_s for before, after in gaps),
        )
        return _each(sum, (own, *(each.phases for each in self.attempts)))


def average(phases: Sequence[Phases]) -> Phases:
    """The averages of each part."""
    return _each(fmean, phases)


def _each(fold: Callable[[list[float]], float], phases: Sequence[Phases]) -> Phases:
    return Phases(**{each.name: fold([getattr(one, each.name) for one in phases]) for each in fields(Phases)})


def measured_attempt(view: RunView, attempt: Attempt, records: Sequence[StepRecord]) -> MeasuredAttempt:
    """``attempt``, which has ended, of the run ``view``. records: its telemetry; of its ranks the first one counts."""
    assert attempt.ended_s is not None
    steps = [each for each in records if each.rank == 0]
    left = (view.run.total_steps or 0) - (attempt.next_attempt.checkpoint_step or 0)
    return MeasuredAttempt(
        plan_id=attempt.plan.plan_id,
        queued_s=_queued_s(view.events, attempt),
        granted_s=attempt.created_s,
        started_s=attempt.started_s,
        first_step_s=steps[0].time_s if steps else None,
        last_step_s=steps[-1].time_s if steps else None,
        released_s=attempt.ended_s,
        step_times_s=tuple(each.step_time_s for each in steps),
        predicted_step_s=attempt.plan.predicted_run_s / left if left > 0 else None,
    )


def _queued_s(events: Sequence[Event], attempt: Attempt) -> float:
    """When the run last began to wait before ``attempt`` had its GPUs."""
    queued = JobState.QUEUED.value
    began = [each.time_s for each in events if each.kind == "state" and each.text.partition(":")[0] == queued]
    return max((each for each in began if each <= attempt.created_s), default=attempt.created_s)
