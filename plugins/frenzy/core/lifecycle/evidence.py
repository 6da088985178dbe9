"""What the workers of an attempt may say of it; anything else is not believed.

The run directory is written by the user's code, and the reports of triggers are made from it. All of it passes
here before it is acted upon: where it is read, and once more before the ledger keeps it. Pure; the bounds come from
the ledger alone, never from the run directory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

from frenzy.core.lifecycle.disruptions import LOSS_REASONS
from frenzy.core.runs.ledger import Attempt, RunRecord
from frenzy.core.runs.protocol import EndReport, PressureReport, ProgressReport
from frenzy.core.runs.steps import total_steps
from frenzy.core.values.errors import ContractError, Reason, ReasonCode
from frenzy.core.values.job import MAX_STEPS
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.run_files import REASON_BY_EXIT, ExitCode
from frenzy.core.values.telemetry import Heartbeat, StepRecord, printable
from frenzy.core.values.workload import believed_releases

# Steps, where neither the job nor its data say how many there are.
_MOST_STEPS: Final = 10**9
# The trainer packs the tokens and counts for itself: an estimate of them is by so many times too low at most.
_ESTIMATE_FACTOR: Final = 16
_MOST_BYTES: Final = 2**50
_MOST_COUNT: Final = 2**62
_LONGEST_STEP_S: Final = 30 * 86400.0
_MOST_TOKENS_PER_S: Final = 1e12
# Clocks of machines differ.
_CLOCK_MARGIN_S: Final = 600.0
_MOST_TEXT_BYTES: Final = 4_000
_CRASHED: Final = 1

PRESSURE_REASONS: Final = frozenset(
    {
        ReasonCode.MEMORY_PRESSURE_FORECAST,
        ReasonCode.MEMORY_PRESSURE_USAGE,
        ReasonCode.ALLOCATOR_RETRIES,
        ReasonCode.WORKER_HUNG,
    }
)
# What a launcher, or whoever started or ended the workers, can know of their end beside their own account.
END_REASONS: Final = LOSS_REASONS | {
    *REASON_BY_EXIT.values(),
    ReasonCode.CHECKPOINTED_ON_REQUEST,
    ReasonCode.CONTAINER_CONFIG_ERROR,
    ReasonCode.DEADLINE_EXCEEDED,
    ReasonCode.LAUNCH_FAILED,
    ReasonCode.WORKERS_LOST,
    ReasonCode.WORKER_CRASHED,
    ReasonCode.WORKER_HUNG,
    ReasonCode.WORKER_KILLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What can be true of an attempt: its ranks, the run's steps, and until when.

    total_steps: the run's last step, where the job says it; most_steps bounds it where it does not.
    may_stop_early: the built-in trainer may end before it, as the job has patience.
    """

    num_ranks: int
    most_steps: int
    total_steps: int | None
    until_s: float
    may_stop_early: bool = False

    def last_of(self, result: AttemptResult) -> int:
        """The run's last step after ``result``; 0 where nobody says it."""
        if result.stopped_early and self.may_stop_early:
            return result.total_steps
        return self.total_steps or result.total_steps


# Of whatever attempt: a message about it carries nothing else.
ANY_ATTEMPT: Final = Bounds(
    num_ranks=2**31, most_steps=MAX_STEPS, total_steps=None, until_s=math.inf, may_stop_early=True
)


def bounds_of(run: RunRecord, attempt: Attempt, now_s: float) -> Bounds:
    """What can be true of ``attempt`` at ``now_s``."""
    # a script says itself when it is done
    given = None if run.job.workload is not None else run.job.training.max_steps
    estimate = total_steps(run.job, run.data_facts)
    return Bounds(
        num_ranks=attempt.plan.num_gpus,
        most_steps=given or (_MOST_STEPS if estimate is None else _ESTIMATE_FACTOR * (estimate + 1)),
        total_steps=given,
        until_s=now_s + _CLOCK_MARGIN_S,
        may_stop_early=run.job.workload is None and run.job.validation.patience is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """Telemetry that can be true; what was wrong with the first record that cannot, and their number."""

    records: tuple[StepRecord, ...]
    problem: str | None = None
    num_dropped: int = 0


def believed(records: Iterable[StepRecord], bounds: Bounds) -> Believed:
    """Those of ``records`` that can be true; the steps of a rank only go up."""
    kept: list[StepRecord] = []
    problems: list[str] = []
    last_steps: dict[int, int] = {}
    for record in records:
        problem = next(_record_problems(record, bounds), None)
        if problem is None and record.step <= last_steps.get(record.rank, 0):
            problem = f"step {record.step} of rank {record.rank} comes after step {last_steps[record.rank]}"
        if problem is None:
            kept.append(replace(record, releases=believed_releases(record.releases)) if record.releases else record)
            last_steps[record.rank] = record.step
        else:
            problems.append(problem)
    first = problems[0] if problems else None
    return Believed(records=tuple(kept), problem=first, num_dropped=len(problems))


def believed_result(result: AttemptResult, bounds: Bounds) -> AttemptResult:
    """``result`` as far as it can be true: an impossible one is a crash whose detail says why.

    Its total of 0 steps stays: workers that ended before the training began do not know it.
    """
    problem = next(_result_problems(result, bounds), None)
    if problem is not None:
        detail = f"The workers' account is not possible: {problem}."
        return AttemptResult(exit_code=_CRASHED, last_step=0, total_steps=bounds.total_steps or 0, detail=detail)
    began = result.total_steps > 0 or result.last_step > 0
    total = bounds.last_of(result) if began else 0
    return replace(result, total_steps=total, detail=_cut(result.detail), releases=believed_releases(result.releases))


def believed_end(report: EndReport, attempt: Attempt, bounds: Bounds) -> EndReport:
    """``report`` as far as it can be true. Never refused: the attempt's GPUs are freed with it."""
    progress, nodes = report.progress, {each.node for each in attempt.placement.allocations}
    reason = report.reason
    if reason is not None and reason.code not in END_REASONS:
        reason = Reason(code=ReasonCode.WORKERS_LOST, detail=f"{reason.code} is no end of workers. {reason.sentence}")
    return EndReport(
        result=None if report.result is None else believed_result(report.result, bounds),
        reason=None if reason is None else believed_reason(reason),
        lost_nodes=tuple(each for each in report.lost_nodes if each in nodes),
        progress=None if progress is None or next(_progress_problems(progress, bounds), None) else progress,
    )


def believed_reason(reason: Reason) -> Reason:
    """``reason`` in words of bounded length that a terminal only shows."""
    remedy = None if reason.remedy is None else _cut(reason.remedy)
    return Reason(code=reason.code, detail=_cut(reason.detail), remedy=remedy)


def _cut(text: str) -> str:
    """By its bytes: a message writes a character in so many as twelve."""
    return printable(text).encode()[:_MOST_TEXT_BYTES].decode(errors="ignore")


def check_progress(message: ProgressReport, bounds: Bounds) -> None:
    """Raises ContractError for what cannot be true."""
    for problem in _progress_problems(message, bounds):
        raise ContractError(f"ProgressReport: {problem}")


def check_pressure(message: PressureReport, bounds: Bounds) -> None:
    """Raises ContractError for what cannot be true, and for a reason that is no pressure."""
    if message.reason.code not in PRESSURE_REASONS:
        raise ContractError(f"PressureReport.reason: {message.reason.code} is not one of {sorted(PRESSURE_REASONS)}")
    check_progress(message.progress, bounds)
    for name in ("extra_bytes_per_gpu", "forecast_extra_bytes_per_gpu"):
        for problem in _outside(name, getattr(message, name), 0, _MOST_BYTES):
            raise ContractError(f"PressureReport: {problem}")


def can_be_true(sign: Heartbeat, bounds: Bounds) -> bool:
    """Whether ``sign`` of progress can be."""
    problems = (*_outside("time_s", sign.time_s, 0.0, bounds.until_s), *_outside("done", sign.done, 0, _MOST_COUNT))
    return not problems


def _record_problems(record: StepRecord, bounds: Bounds) -> Iterator[str]:
    yield from _outside("rank", record.rank, 0, bounds.num_ranks - 1)
    yield from _outside("step", record.step, 1, bounds.most_steps)
    yield from _outside("time_s", record.time_s, 0.0, bounds.until_s)
    yield from _outside("capacity_bytes", record.capacity_bytes, 1, _MOST_BYTES)
    yield from _outside("tokens_per_s", record.tokens_per_s, 0.0, _MOST_TOKENS_PER_S)
    for name in ("step_time_s", "throttle_s"):
        yield from _outside(name, getattr(record, name), 0.0, _LONGEST_STEP_S)
    yield from _peak_problems(record.peaks)
    yield from _outside("host_rss_bytes", record.host_rss_bytes, 0, _MOST_BYTES)
    for name in ("num_alloc_retries", "num_ooms", "clock_reasons", "ecc_errors"):
        yield from _outside(name, getattr(record, name), 0, _MOST_COUNT)


def _progress_problems(message: ProgressReport, bounds: Bounds) -> Iterator[str]:
    for name in ("last_step", "growth_step", "checkpoint_step"):
        yield from _outside(name, getattr(message, name), 0, bounds.most_steps)
    yield from _outside("step_time_s", message.step_time_s, 0.0, _LONGEST_STEP_S)
    yield from _outside("first_step_s", message.first_step_s, 0.0, bounds.until_s)
    yield from _outside("explained_peak_bytes", message.explained_peak_bytes, 0, _MOST_BYTES)
    if message.peaks is not None:
        yield from _peak_problems(message.peaks)


def _peak_problems(peaks: PeakMemory) -> Iterator[str]:
    for each in fields(peaks):
        yield from _outside(f"peaks.{each.name}", getattr(peaks, each.name), 0, _MOST_BYTES)


def _result_problems(result: AttemptResult, bounds: Bounds) -> Iterator[str]:
    yield from _outside("exit_code", result.exit_code, 0, 255)
    for name in ("last_step", "total_steps", "resumed_from_step", "checkpoint_step"):
        yield from _outside(name, getattr(result, name), 0, bounds.most_steps)
    yield from _outside("first_failing_rank", result.first_failing_rank, 0, bounds.num_ranks - 1)
    total = bounds.last_of(result)
    if total and result.last_step > total:
        yield f"last_step {result.last_step} is after the last of {total}"
    if result.stopped_early and not bounds.may_stop_early:
        yield "it says that it stopped early, and the job has no validation.patience"
    if result.exit_code == ExitCode.DONE and not result.last_step == total > 0:
        yield f"it says that all is done at step {result.last_step} of {total}"


def _outside(name: str, value: float | None, least: float, most: float) -> Iterator[str]:
    if value is not None and not least <= value <= most:
        shown = f"{value:.15g}" if abs(value) < _MOST_COUNT else "beyond all numbers"
        yield f"{name} {shown} is not from {least:.15g} to {most:.15g}"
