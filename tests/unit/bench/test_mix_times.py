"""Where a job's time went is read from its ledger, history and telemetry; the parts make up the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.bench.mix_times import MeasuredAttempt, MeasuredJob, average, measured_attempt
from tests.unit.core.attempts import attempt as ended_attempt
from tests.unit.core.attempts import plan, run_record

from frenzy.core.runs.ledger import Attempt, Event, NextAttempt, RunRecord
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.telemetry import StepRecord

FIRST = MeasuredAttempt(
    plan_id="a",
    queued_s=105.0,
    granted_s=110.0,
    started_s=112.0,
    first_step_s=120.0,
    last_step_s=126.5,
    released_s=130.0,
    step_times_s=(3.0, 2.0, 2.0, 2.0),
    predicted_step_s=1.5,
)
SECOND = replace(
    FIRST,
    queued_s=133.0,
    granted_s=133.0,
    started_s=134.0,
    first_step_s=140.0,
    last_step_s=140.0,
    released_s=141.0,
    step_times_s=(1.5,),
)
JOB = MeasuredJob(name="j", triggered_s=100.0, attempts=(FIRST, SECOND))


def registered(total_steps: int | None = 10) -> RunRecord:
    return replace(run_record(), total_steps=total_steps)


def granted(number: int, created_s: float, *, checkpoint_step: int | None = None) -> Attempt:
    before = ended_attempt(number, ReasonCode.COMPLETED)
    return replace(
        before,
        plan=replace(plan(), predicted_run_s=16.0),
        created_s=created_s,
        started_s=created_s + 1.0,
        ended_s=created_s + 20.0,
        next_attempt=NextAttempt(attempt=number, reason=before.next_attempt.reason, checkpoint_step=checkpoint_step),
    )


def history(*lines: tuple[float, str]) -> tuple[Event, ...]:
    return tuple(Event(run_key="k", time_s=time_s, kind="state", text=text) for time_s, text in lines)


def record(step: int, time_s: float, step_time_s: float, rank: int = 0) -> StepRecord:
    return StepRecord(
        rank=rank,
        step=step,
        time_s=time_s,
        loss=1.0,
        step_time_s=step_time_s,
        tokens_per_s=1.0,
        peaks=PeakMemory(allocated_bytes=1, reserved_bytes=1, device_used_bytes=1),
        capacity_bytes=1,
    )


def measured(attempt: Attempt, events: Sequence[Event] = (), records: Sequence[StepRecord] = ()) -> MeasuredAttempt:
    return measured_attempt(RunView(run=registered(), events=tuple(events)), attempt, records)


def test_the_parts_of_an_attempt_lie_between_its_moments() -> None:
    parts = FIRST.phases
    assert (parts.waiting, parts.launching, parts.starting) == (5.0, 2.0, 5.0)
    assert (parts.stepping, parts.between, parts.leaving) == (9.0, 0.5, 3.5)
    assert parts.beside_s == FIRST.released_s - FIRST.granted_s - sum(FIRST.step_times_s)


def test_the_parts_of_a_job_add_up_to_its_completion_time() -> None:
    parts = JOB.phases
    assert parts.to_queue == 5.0
    assert parts.again == SECOND.queued_s - FIRST.released_s
    assert parts.total_s == pytest.approx(JOB.jct_s) == pytest.approx(41.0)


@pytest.mark.parametrize(
    ("lacking", "part"),
    [
        ({"started_s": None, "first_step_s": None, "last_step_s": None}, "launching"),
        ({"first_step_s": None, "last_step_s": None}, "starting"),
    ],
)
def test_an_attempt_that_never_came_to_a_step_spent_its_time_on_the_way_there(
    lacking: dict[str, None], part: str
) -> None:
    short = replace(FIRST, step_times_s=(), **lacking)
    before = 0.0 if part == "launching" else 2.0
    assert getattr(short.phases, part) == 20.0 - before
    assert short.phases.beside_s == 20.0
    assert short.step_error is None


def test_averages_are_taken_part_by_part() -> None:
    mean = average([FIRST.phases, SECOND.phases])
    assert (mean.waiting, mean.leaving) == (2.5, 2.25)


def test_slowness_sets_all_steps_of_a_job_against_what_was_predicted_for_them() -> None:
    assert JOB.slowness == pytest.approx((9.0 + 1.5) / (4 * 1.5 + 1 * 1.5))
    assert FIRST.step_error == pytest.approx(9.0 / 4 / 1.5 - 1)
    unknown = replace(FIRST, predicted_step_s=None)
    assert replace(JOB, attempts=(unknown,)).slowness == 1.0


def test_the_times_of_a_job_count_from_its_trigger() -> None:
    assert (JOB.first_start_s, JOB.queued_s, JOB.end_s, JOB.num_moves) == (10.0, 105.0, 141.0, 1)
    assert JOB.beside_s == pytest.approx((11.0 + 6.5) / 2)


def test_an_attempt_was_queued_when_its_run_last_began_to_wait_before_it() -> None:
    events = history((1.0, "PENDING: registered"), (2.0, "QUEUED"), (5.0, "PLACED: x"), (30.0, "QUEUED: MOVED: y"))
    assert measured(granted(1, 5.0), events).queued_s == 2.0
    assert measured(granted(2, 31.0), events).queued_s == 30.0
    assert measured(granted(1, 1.5), events).queued_s == 1.5


def test_steps_are_those_of_the_first_rank_and_each_is_predicted_to_take_its_share_of_the_run() -> None:
    records = (record(3, 12.0, 2.0), record(3, 12.1, 9.0, rank=1), record(4, 14.5, 2.4))
    found = measured(granted(2, 5.0, checkpoint_step=2), records=records)
    assert (found.first_step_s, found.last_step_s) == (12.0, 14.5)
    assert found.step_times_s == (2.0, 2.4)
    assert found.predicted_step_s == 16.0 / 8


def test_without_a_known_number_of_steps_there_is_no_step_to_predict() -> None:
    view = RunView(run=registered(total_steps=None))
    assert measured_attempt(view, granted(1, 5.0), ()).predicted_step_s is None
