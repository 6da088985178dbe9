"""What a changed cluster does to each job of a captured queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frenzy.core.runs.views import QueueSnapshot
from frenzy.sim.cluster_changes import Changed
from frenzy.sim.results import JobOutcome, SimResult
from frenzy.sim.summaries import Summary, mean, summarise

AS_IT_IS, CHANGED = "as it is", "what if"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """One job before and after, in seconds from the moment of the snapshot; None: it never starts, or ends.

    start: below 0 for a job that ran already.
    """

    run_key: str
    job_name: str
    start_before_s: float | None
    start_after_s: float | None
    end_before_s: float | None
    end_after_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Over the jobs that end in both simulations, in seconds; 0 for no such job. jct: submission to end."""

    num_jobs: int
    jct_before_s: float
    jct_after_s: float
    wait_before_s: float
    wait_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Both simulations, by job and in sum. before, after: each over the jobs that end in it. notes: not covered."""

    change: str
    policy: str
    jobs: tuple[JobChange, ...]
    before: Summary
    after: Summary
    means: Means
    notes: tuple[str, ...]

    @property
    def num_sooner(self) -> int:
        return sum(_sooner(each.end_after_s, each.end_before_s) for each in self.jobs)

    @property
    def num_later(self) -> int:
        return sum(_sooner(each.end_before_s, each.end_after_s) for each in self.jobs)


def answer(snapshot: QueueSnapshot, change: str, changed: Changed, before: SimResult, after: SimResult) -> Answer:
    """What ``change`` made of it, job by job, the first to end before it first."""
    then = {job.run_key: job for job in after.jobs}
    jobs = [_change(job, then[job.run_key], snapshot.taken_s) for job in before.jobs]
    never = float("inf")
    jobs.sort(key=lambda each: (never if each.end_before_s is None else each.end_before_s, each.run_key))
    first, second = (
        replace(summarise(each), num_decisions=0, scheduler_cpu_s=0.0, decision_mean_s=0.0, decision_p99_s=0.0)
        for each in (before, after)
    )
    return Answer(
        change=change,
        policy=before.policy,
        jobs=tuple(jobs),
        before=first,
        after=second,
        means=_means([(job, then[job.run_key]) for job in before.jobs]),
        notes=changed.notes,
    )


def side_by_side(before: SimResult, after: SimResult) -> list[SimResult]:
    """Both under names that tell them apart in a report."""
    return [replace(each, policy=f"{each.policy}, {label}") for each, label in ((before, AS_IT_IS), (after, CHANGED))]


def _means(pairs: Sequence[tuple[JobOutcome, JobOutcome]]) -> Means:
    ended = [(job, then) for job, then in pairs if job.end_s is not None and then.end_s is not None]
    return Means(
        num_jobs=len(ended),
        jct_before_s=mean([job.jct_s or 0.0 for job, _ in ended]),
        jct_after_s=mean([then.jct_s or 0.0 for _, then in ended]),
        wait_before_s=mean([job.waiting_s for job, _ in ended]),
        wait_after_s=mean([then.waiting_s for _, then in ended]),
    )


def _change(before: JobOutcome, after: JobOutcome, now_s: float) -> JobChange:
    return JobChange(
        run_key=before.run_key,
        job_name=before.job_name,
        start_before_s=_since(before.first_start_s, now_s),
        start_after_s=_since(after.first_start_s, now_s),
        end_before_s=_since(before.end_s, now_s),
        end_after_s=_since(after.end_s, now_s),
    )


def _since(when_s: float | None, now_s: float) -> float | None:
    return None if when_s is None else when_s - now_s


def _sooner(left: float | None, right: float | None) -> bool:
    """Whether ``left`` is a second or more before ``right``; what never happens is last."""
    return (float("inf") if left is None else left) + 1.0 <= (float("inf") if right is None else right)
