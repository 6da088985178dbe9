"""Each check of the demo passes with good evidence and fails with evidence that lacks just its point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.scenarios import checks
from tests.scenarios.checks import judge
from tests.scenarios.evidence import Evidence, TaskTimes
from tests.unit.scenarios.evidence import CONFIG, good, loss, plan

from frenzy.cli import demo_checks
from frenzy.cli.demo_checks import Check
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView
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


def of_view(check: Callable[[RunView], Check]) -> Callable[[Evidence], Check]:
    """A check of the ledger's record, asked of evidence like the others."""
    return lambda evidence: check(evidence.view)


def run_succeeded(evidence: Evidence) -> Check:
    return demo_checks.run_succeeded(evidence.dag_state, evidence.view)


def test_good_evidence_passes_every_check() -> None:
    found = judge(good())
    assert [each for each in found if not each.passed] == []
    assert all(each.name and each.evidence for each in found)


BROKEN: dict[str, tuple[Callable[[Evidence], Check], Callable[[Evidence], Evidence]]] = {
    "DAG run failed": (run_succeeded, lambda e: replace(e, dag_state="failed")),
    "job failed": (run_succeeded, lambda e: with_run(e, state=JobState.FAILED)),
    "stopped early": (run_succeeded, lambda e: with_attempt(e, 1, last_step=39)),
    "too few steps": (checks.loss_fell, lambda e: replace(e, memory=replace(e.memory, attempts=()))),
    "never moved": (of_view(demo_checks.moved_in_time), lambda e: only_attempt(e, 1)),
    "ran out before": (of_view(demo_checks.moved_in_time), lambda e: with_attempt(e, 0, outcome=EXCEEDED)),
    "one attempt": (of_view(demo_checks.workers_changed), lambda e: only_attempt(e, 1)),
    "same workers": (of_view(demo_checks.workers_changed), lambda e: with_attempt(e, 1, plan=plan(4, 2))),
    "same plan": (of_view(demo_checks.workers_changed), lambda e: with_attempt(e, 1, plan=plan(4, 4))),
    "other batch planned": (
        of_view(demo_checks.batch_kept),
        lambda e: with_job(e, training=TrainingSpec(global_batch_size=8)),
    ),
    "other batch launched": (checks.batch_launched, lambda e: replace(e, launched_batches=(16, 8))),
    "no DeepSpeed config": (checks.batch_launched, lambda e: replace(e, launched_batches=(16, None))),
    "started afresh": (
        of_view(demo_checks.training_resumed),
        lambda e: with_attempt(e, 1, result=AttemptResult(exit_code=0, last_step=40, total_steps=40)),
    ),
    "no result": (of_view(demo_checks.training_resumed), lambda e: with_attempt(e, 1, result=None)),
    "predicted too little": (
        of_view(demo_checks.memory_was_predicted),
        lambda e: with_attempt(e, 0, explained_peak_bytes=109 * MIB),
    ),
    "predicted too much": (
        of_view(demo_checks.memory_was_predicted),
        lambda e: with_attempt(e, 1, explained_peak_bytes=91 * MIB),
    ),
    "nothing measured": (
        of_view(demo_checks.memory_was_predicted),
        lambda e: with_attempt(e, 1, explained_peak_bytes=None),
    ),
    "no control run": (checks.loss_equals_control, lambda e: replace(e, control_result=None)),
    "control run failed": (
        checks.loss_equals_control,
        lambda e: replace(e, control_result=AttemptResult(exit_code=1, last_step=3, total_steps=40)),
    ),
    "loss differs before the move": (checks.loss_equals_control, lambda e: off_control(e, 5, 1 + 1e-5)),
    "loss differs after the move": (checks.loss_equals_control, lambda e: off_control(e, 30, 1 + 1e-4)),
    "control run too short": (
        checks.loss_equals_control,
        lambda e: replace(e, control_losses={step: loss(step) for step in range(1, 30)}),
    ),
    "model does not load": (checks.model_loads, lambda e: replace(e, model=replace(e.model, problem="broken"))),
    "no safetensors": (checks.model_loads, lambda e: replace(e, model=replace(e.model, files=("config.json",)))),
    "no event": (checks.asset_was_announced, lambda e: replace(e, asset_events=())),
    "event of another run": (
        checks.asset_was_announced,
        lambda e: replace(e, asset_events=({"uri": "x", "extra": {"run_key": "other"}},)),
    ),
    "no evaluation": (checks.evaluation_followed, lambda e: replace(e, evaluation=None)),
    "no sample": (checks.evaluation_followed, lambda e: replace(e, evaluation={"perplexity": 3.0, "sample": ""})),
    "perplexity is not a number": (
        checks.evaluation_followed,
        lambda e: replace(e, evaluation={"perplexity": math.nan, "sample": "x"}),
    ),
    "evaluated too early": (
        checks.evaluation_followed,
        lambda e: replace(e, tasks=(TaskTimes(task_id="evaluate", state="success", start_s=150.0, end_s=260.0),)),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_check_fails_where(case: str) -> None:
    check, spoil = BROKEN[case]
    assert check(good()).passed
    told = check(spoil(good()))
    assert not told.passed
    assert told.evidence


def test_loss_that_rises_is_noticed() -> None:
    evidence = good()
    turned = tuple(
        replace(each, steps=tuple(replace(step, loss=5.0 - step.loss) for step in each.steps))
        for each in evidence.memory.attempts
    )
    assert not checks.loss_fell(replace(evidence, memory=replace(evidence.memory, attempts=turned))).passed


def test_noise_of_another_order_of_sums_is_allowed_only_after_the_layout_changed() -> None:
    assert checks.loss_equals_control(off_control(good(), 30, 1 + 5e-6)).passed
    assert not checks.loss_equals_control(off_control(good(), 3, 1 + 5e-6)).passed


def test_crossing_into_stage_three_allows_more() -> None:
    crossed = with_attempt(good(), 1, plan=plan(1, 16, zero=3))
    assert checks.loss_equals_control(off_control(crossed, 30, 1 + 1e-4)).passed


def test_dropout_lets_only_means_be_compared_after_the_layout_changed() -> None:
    noisy = with_run(good(), model_config={**CONFIG, "resid_pdrop": 0.1})
    assert checks.loss_equals_control(off_control(noisy, 30, 1.01)).passed
    assert not checks.loss_equals_control(off_control(noisy, 3, 1.01)).passed


def test_with_the_forecast_off_it_must_have_run_out_and_gone_on() -> None:
    off = with_job(good(), on_memory_pressure=MemoryPressureSpec(forecast=False))
    assert not of_view(demo_checks.moved_in_time)(off).passed
    assert of_view(demo_checks.moved_in_time)(with_attempt(off, 0, outcome=EXCEEDED)).passed
