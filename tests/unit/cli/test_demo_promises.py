"""Each promise of the demo is kept by good evidence and broken by evidence that lacks just its point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.cli.evidence import CONFIG, good, loss, plan

from frenzy.cli import demo_promises as promises
from frenzy.cli.demo_evidence import Evidence, TaskTimes
from frenzy.cli.demo_promises import Promise, judge
from frenzy.core.runs.ledger import JobState
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import MemoryPressureSpec, TrainingSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.units import MIB

EXCEEDED = Reason(code=ReasonCode.BUDGET_EXCEEDED)


def with_run(evidence: Evidence, **changes: Any) -> Evidence:
    view = evidence.view
    return replace(evidence, view=replace(view, run=replace(view.run, **changes)))


def with_attempt(evidence: Evidence, index: int, **changes: Any) -> Evidence:
    attempts = list(evidence.view.attempts)
    attempts[index] = replace(attempts[index], **changes)
    return replace(evidence, view=replace(evidence.view, attempts=tuple(attempts)))


def measured(evidence: Evidence, index: int, num_bytes: int | None) -> Evidence:
    return with_attempt(evidence, index, explained_peak_bytes=num_bytes)


def with_job(evidence: Evidence, **changes: Any) -> Evidence:
    return with_run(evidence, job=replace(evidence.view.run.job, **changes))


def only_attempt(evidence: Evidence, index: int) -> Evidence:
    return replace(
        evidence,
        view=replace(evidence.view, attempts=(evidence.view.attempts[index],)),
        memory=replace(evidence.memory, attempts=(evidence.memory.attempts[index],)),
    )


def off_control(evidence: Evidence, step: int, factor: float) -> Evidence:
    losses = {**evidence.control_losses, step: evidence.control_losses[step] * factor}
    return replace(evidence, control_losses=losses)


def test_good_evidence_keeps_every_promise() -> None:
    kept = judge(good())
    assert [each for each in kept if not each.kept] == []
    assert all(each.name and each.evidence for each in kept)


BROKEN: dict[str, tuple[Callable[[Evidence], Promise], Callable[[Evidence], Evidence]]] = {
    "DAG run failed": (promises.run_succeeded, lambda e: replace(e, dag_state="failed")),
    "job failed": (promises.run_succeeded, lambda e: with_run(e, state=JobState.FAILED)),
    "stopped early": (promises.run_succeeded, lambda e: with_attempt(e, 1, last_step=39)),
    "too few steps": (promises.loss_fell, lambda e: replace(e, memory=replace(e.memory, attempts=()))),
    "never moved": (promises.moved_in_time, lambda e: only_attempt(e, 1)),
    "ran out before": (promises.moved_in_time, lambda e: with_attempt(e, 0, outcome=EXCEEDED)),
    "one attempt": (promises.workers_changed, lambda e: only_attempt(e, 1)),
    "same workers": (promises.workers_changed, lambda e: with_attempt(e, 1, plan=plan(4, 2))),
    "same plan": (promises.workers_changed, lambda e: with_attempt(e, 1, plan=plan(4, 4))),
    "other batch planned": (promises.batch_kept, lambda e: with_job(e, training=TrainingSpec(global_batch_size=8))),
    "other batch launched": (promises.batch_kept, lambda e: replace(e, launched_batches=(16, 8))),
    "no DeepSpeed config": (promises.batch_kept, lambda e: replace(e, launched_batches=(16, None))),
    "started afresh": (
        promises.training_resumed,
        lambda e: with_attempt(e, 1, result=AttemptResult(exit_code=0, last_step=40, total_steps=40)),
    ),
    "no result": (promises.training_resumed, lambda e: with_attempt(e, 1, result=None)),
    "predicted too little": (
        promises.memory_was_predicted,
        lambda e: with_attempt(e, 0, explained_peak_bytes=109 * MIB),
    ),
    "predicted too much": (promises.memory_was_predicted, lambda e: with_attempt(e, 1, explained_peak_bytes=92 * MIB)),
    "nothing measured": (promises.memory_was_predicted, lambda e: with_attempt(e, 1, explained_peak_bytes=None)),
    "no control run": (promises.loss_equals_control, lambda e: replace(e, control_result=None)),
    "control run failed": (
        promises.loss_equals_control,
        lambda e: replace(e, control_result=AttemptResult(exit_code=1, last_step=3, total_steps=40)),
    ),
    "loss differs before the move": (promises.loss_equals_control, lambda e: off_control(e, 5, 1 + 1e-5)),
    "loss differs after the move": (promises.loss_equals_control, lambda e: off_control(e, 30, 1 + 1e-4)),
    "control run too short": (
        promises.loss_equals_control,
        lambda e: replace(e, control_losses={step: loss(step) for step in range(1, 30)}),
    ),
    "model does not load": (promises.model_loads, lambda e: replace(e, model=replace(e.model, problem="broken"))),
    "no safetensors": (promises.model_loads, lambda e: replace(e, model=replace(e.model, files=("config.json",)))),
    "no event": (promises.asset_was_announced, lambda e: replace(e, asset_events=())),
    "event of another run": (
        promises.asset_was_announced,
        lambda e: replace(e, asset_events=({"uri": "x", "extra": {"run_key": "other"}},)),
    ),
    "no evaluation": (promises.evaluation_followed, lambda e: replace(e, evaluation=None)),
    "no sample": (promises.evaluation_followed, lambda e: replace(e, evaluation={"perplexity": 3.0, "sample": ""})),
    "perplexity is not a number": (
        promises.evaluation_followed,
        lambda e: replace(e, evaluation={"perplexity": math.nan, "sample": "x"}),
    ),
    "evaluated too early": (
        promises.evaluation_followed,
        lambda e: replace(e, tasks=(TaskTimes(task_id="evaluate", state="success", start_s=150.0, end_s=260.0),)),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_promise_is_broken_by(case: str) -> None:
    check, spoil = BROKEN[case]
    assert check(good()).kept
    told = check(spoil(good()))
    assert not told.kept
    assert told.evidence


def test_loss_that_rises_is_noticed() -> None:
    evidence = good()
    turned = tuple(
        replace(each, steps=tuple(replace(step, loss=5.0 - step.loss) for step in each.steps))
        for each in evidence.memory.attempts
    )
    assert not promises.loss_fell(replace(evidence, memory=replace(evidence.memory, attempts=turned))).kept


def test_noise_of_another_order_of_sums_is_allowed_only_after_the_layout_changed() -> None:
    assert promises.loss_equals_control(off_control(good(), 30, 1 + 5e-6)).kept
    assert not promises.loss_equals_control(off_control(good(), 3, 1 + 5e-6)).kept


def test_crossing_into_stage_three_allows_more() -> None:
    crossed = with_attempt(good(), 1, plan=plan(1, 16, zero=3))
    assert promises.loss_equals_control(off_control(crossed, 30, 1 + 1e-4)).kept


def test_dropout_lets_only_means_be_compared_after_the_layout_changed() -> None:
    noisy = with_run(good(), model_config={**CONFIG, "resid_pdrop": 0.1})
    assert promises.loss_equals_control(off_control(noisy, 30, 1.01)).kept
    assert not promises.loss_equals_control(off_control(noisy, 3, 1.01)).kept


def test_with_the_forecast_off_it_must_have_run_out_and_gone_on() -> None:
    off = with_job(good(), on_memory_pressure=MemoryPressureSpec(forecast=False))
    assert not promises.moved_in_time(off).kept
    assert promises.moved_in_time(with_attempt(off, 0, outcome=EXCEEDED)).kept
