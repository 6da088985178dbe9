"""What a demo that went well leaves behind, for the tests of its judges."""

from __future__ import annotations

import math

from tests.scenarios.evidence import Evidence, ModelCheck, TaskTimes

from frenzy.core.runs.ledger import Attempt, JobState, NextAttempt, RunIdentity, RunRecord
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import AttemptMemory, MemoryView
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import DataSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.core.values.telemetry import StepPeak
from frenzy.core.values.units import MIB

FORECAST = Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="It rises.")
BEST = Reason(code=ReasonCode.BEST_PLAN)
COMPLETED = Reason(code=ReasonCode.COMPLETED)
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
        peaks=PeakMemory(allocated_bytes=150 * MIB),
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
            peaks=PeakMemory(allocated_bytes=98 * MIB, reserved_bytes=98 * MIB),
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
