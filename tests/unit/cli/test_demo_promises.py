"""Each promise of the demo is kept by good evidence and broken by evidence that lacks just its point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from frenzy.cli import demo_promises as promises
from frenzy.cli.demo_evidence import Evidence, ModelCheck, TaskTimes
from frenzy.cli.demo_promises import Promise, judge
from frenzy.core.cluster import NodeAllocation, Placement
from frenzy.core.errors import Reason, ReasonCode
from frenzy.core.job import DataSpec, MemoryPressureSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.launch import AttemptResult
from frenzy.core.ledger import Attempt, JobState, NextAttempt, RunIdentity, RunRecord
from frenzy.core.plan import MemoryPrediction, ResourcePlan
from frenzy.core.protocol import AttemptMemory, MemoryView, RunView
from frenzy.core.telemetry import StepPeak
from frenzy.core.units import MIB

FORECAST = Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="It rises.")
BEST = Reason(code=ReasonCode.BEST_PLAN)
COMPLETED = Reason(code=ReasonCode.COMPLETED)
EXCEEDED = Reason(code=ReasonCode.BUDGET_EXCEEDED)


CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 264,
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "n_inner": None,
    "tie_word_embeddings": True,
    "activation_function": "gelu_new",
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "summary_first_dropout": 0.1,
}


def plan(num_gpus: int, micro: int, *, zero: int = 1, gpu_type: str = "small") -> ResourcePlan:
    return ResourcePlan(
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        dp=num_gpus,
        tp=1,
        zero_stage=zero,
        micro_batch_size=micro,
        accumulation_steps=16 // (num_gpus * micro),
        activation_checkpointing=False,
        memory=MemoryPrediction(peak_allocated_bytes=100 * MIB, required_bytes=110 * MIB, host_bytes=0, at="step"),
        gpu_memory_bytes=400 * MIB,
        step_time_s=1.0,
        samples_per_s=16.0,
        predicted_run_s=40.0,
        predicted_cost=0.1,
    )


def loss(step: int) -> float:
    return 2.0 + 3.0 * math.exp(-step / 10)


def attempt(number: int, chosen: ResourcePlan, outcome: Reason, *, resumed: int | None, last: int) -> Attempt:
    result = AttemptResult(exit_code=0, last_step=last, total_steps=40, resumed_from_step=resumed)
    return Attempt(
        run_key="key",
        attempt=number,
        plan=chosen,
        placement=Placement(allocations=(NodeAllocation(node="a", num_gpus=chosen.num_gpus),)),
        created_s=0.0,
        next_attempt=NextAttempt(attempt=number, reason=BEST),
        ended_s=100.0 * number,
        outcome=outcome,
        result=result,
        last_step=last,
        measured_peak_bytes=150 * MIB,
        explained_peak_bytes=98 * MIB,
        growth_step=last - 3,
    )


def steps(first: int, last: int, ranks: int) -> tuple[StepPeak, ...]:
    return tuple(
        StepPeak(
            step=step,
            time_s=float(step),
            loss=loss(step),
            step_time_s=1.0,
            tokens_per_s=1.0,
            allocated_peak_bytes=98 * MIB,
            reserved_peak_bytes=98 * MIB,
            capacity_bytes=400 * MIB,
            num_alloc_retries=0,
            num_ranks=ranks,
        )
        for step in range(first, last + 1)
    )


def memory_of(each: Attempt, first: int) -> AttemptMemory:
    return AttemptMemory(
        attempt=each.attempt,
        plan_id=each.plan.plan_id,
        num_gpus=each.plan.num_gpus,
        predicted_peak_bytes=each.plan.memory.peak_allocated_bytes,
        required_bytes=each.plan.memory.required_bytes,
        capacity_bytes=each.plan.gpu_memory_bytes,
        growth_step=each.growth_step,
        outcome=each.outcome,
        steps=steps(first, each.last_step, each.plan.num_gpus),
    )


def good() -> Evidence:
    job = TrainingJob(
        name="job",
        model=ModelSpec(config={"model_type": "gpt2"}),
        data=DataSpec(path="text"),
        training=TrainingSpec(max_steps=40, global_batch_size=16, precision=Precision.FP32),
    )
    first = attempt(1, plan(4, 4), FORECAST, resumed=None, last=20)
    second = attempt(2, plan(1, 16, gpu_type="large"), COMPLETED, resumed=18, last=40)
    run = RunRecord(
        run_key="key",
        identity=RunIdentity(dag_id="job_job", run_id="r", task_group="train"),
        job=job,
        state=JobState.SUCCEEDED,
        created_s=0.0,
        updated_s=0.0,
        total_steps=40,
        model_config=CONFIG,
    )
    return Evidence(
        dag_state="success",
        view=RunView(run=run, attempts=(first, second)),
        memory=MemoryView(
            run_key="key",
            job_name="job",
            state=JobState.SUCCEEDED,
            attempts=(memory_of(first, 1), memory_of(second, 19)),
        ),
        launched_batches=(16, 16),
        control_losses={step: loss(step) for step in range(1, 41)},
        control_result=AttemptResult(exit_code=0, last_step=40, total_steps=40),
        model=ModelCheck(
            folder="m", files=("config.json", "model.safetensors"), family="gpt2", num_parameters=3_000_000
        ),
        asset_events=({"uri": "frenzy://models/job", "extra": {"run_key": "key"}},),
        evaluation={"perplexity": 12.0, "sample": "ROMEO: to be"},
        tasks=(TaskTimes(task_id="evaluate", state="success", start_s=250.0, end_s=260.0),),
    )


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
