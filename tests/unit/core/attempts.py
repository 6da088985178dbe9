"""Plans, attempts and a run as the follow-up of an attempt finds them."""

from __future__ import annotations

from frenzy.core.runs.ledger import Attempt, JobState, NextAttempt, RunIdentity, RunRecord
from frenzy.core.values.cluster import NodeAllocation, Placement
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import DataSpec, MemoryPressureSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.resource_plan import Candidate, MemoryPrediction, ResourcePlan
from frenzy.core.values.units import MIB

FORECAST = Reason(code=ReasonCode.MEMORY_PRESSURE_FORECAST, detail="rising")


def plan(
    *,
    gpus: int = 2,
    gpu_type: str = "small",
    zero: int = 1,
    micro: int = 4,
    ckpt: bool = False,
    peak: int = 300,
    memory: int = 400,
) -> ResourcePlan:
    return ResourcePlan(
        gpu_type=gpu_type,
        num_gpus=gpus,
        dp=gpus,
        tp=1,
        zero_stage=zero,
        micro_batch_size=micro,
        accumulation_steps=16 // (micro * gpus) or 1,
        activation_checkpointing=ckpt,
        memory=MemoryPrediction(peak_allocated_bytes=peak * MIB, required_bytes=peak * MIB, host_bytes=0, at="step"),
        gpu_memory_bytes=memory * MIB,
        step_time_s=1.0,
        samples_per_s=1.0,
        predicted_run_s=1.0,
        predicted_cost=0.0,
    )


def listed(*plans: ResourcePlan) -> tuple[Candidate, ...]:
    reason = Reason(code=ReasonCode.SLOWER_PLAN)
    return tuple(Candidate(plan=each, rank=index, reason=reason) for index, each in enumerate(plans, start=1))


def run_record(*, max_reschedules: int = 3, num_reschedules: int = 0) -> RunRecord:
    job = TrainingJob(
        name="j",
        model=ModelSpec(config={"model_type": "gpt2"}),
        data=DataSpec(path="x"),
        training=TrainingSpec(max_steps=10),
        on_memory_pressure=MemoryPressureSpec(max_reschedules=max_reschedules),
    )
    identity = RunIdentity(dag_id="d", run_id="r", task_group="train")
    return RunRecord(
        run_key=identity.run_key,
        identity=identity,
        job=job,
        state=JobState.RECOVERING,
        created_s=0.0,
        updated_s=0.0,
        num_reschedules=num_reschedules,
    )


def attempt(number: int, code: ReasonCode, *, last_step: int = 5, extra: int = 0) -> Attempt:
    return Attempt(
        run_key="k",
        attempt=number,
        plan=plan(),
        placement=Placement(allocations=(NodeAllocation(node="n", num_gpus=2),)),
        created_s=0.0,
        next_attempt=NextAttempt(attempt=number, reason=FORECAST),
        ended_s=1.0,
        outcome=Reason(code=code, detail="because"),
        last_step=last_step,
        extra_bytes_per_gpu=extra,
    )
