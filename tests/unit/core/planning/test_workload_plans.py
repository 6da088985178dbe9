"""Plans of a script: they vary only in what the script takes, and say where their memory is from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.marp_values import CALIBRATION, job, llama_config, mixed_cluster, request

from frenzy.core.memory.measured_runs import MeasuredRun, MeasuredRuns
from frenzy.core.memory.residuals import Residual, ResidualGroup, Residuals
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.marp import plan_candidates, smallest_remedy
from frenzy.core.planning.request import PlanRequest
from frenzy.core.planning.script_plans import UNNAMED_MODEL
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Checkpointing, LoraSpec, ModelSpec, TrainingJob
from frenzy.core.values.resource_plan import Candidate, MemorySource, PlanShape, ResourcePlan
from frenzy.core.values.workload import DeclaredMemory, Honour, Task, WorkloadSpec

COMMAND = ("python", "train.py")
MIXTRAL = model_shape(
    {
        **llama_config(512, 4, 4, 2048, intermediate_size=512, num_key_value_heads=2),
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 512,
    }
)
EVERYTHING = tuple(str(each) for each in Honour)


def asked(*honours: str, memory: str | None = None, of: TrainingJob | None = None, **workload: Any) -> PlanRequest:
    """Of a script with a model, or with declared ``memory`` and none."""
    script = replace(of or job(), workload=WorkloadSpec(command=COMMAND, honours=honours, **workload))
    if memory is None:
        return request(of=script)
    unnamed = replace(script, model=ModelSpec(), memory=DeclaredMemory(per_gpu=memory))
    return request(UNNAMED_MODEL, unnamed)


def unmeasured(*honours: str, runs: tuple[MeasuredRun, ...] = ()) -> PlanRequest:
    """Of a script of whose memory only ``runs`` are known."""
    unnamed = replace(job(), workload=WorkloadSpec(command=COMMAND, honours=honours), model=ModelSpec())
    known = MeasuredRuns(runs=runs, divides_states=Honour.ZERO in honours)
    return replace(request(UNNAMED_MODEL, unnamed), measured_runs=known)


def took(mib: int, shape: PlanShape, *, ran_out: bool = False, whole: bool = True) -> MeasuredRun:
    return MeasuredRun(kind=DeviceKind.VIRTUAL, shape=shape, peak_bytes=mib * 1024**2, ran_out=ran_out, is_whole=whole)


def candidates(of: PlanRequest, policy: str = "closed-form") -> tuple[Candidate, ...]:
    return plan_candidates(of, mixed_cluster(), CALIBRATION, policy)


def plans(of: PlanRequest) -> list[ResourcePlan]:
    return [each.plan for each in candidates(of) if each.feasible]


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(EVERYTHING)), st.sampled_from(list(Checkpointing)))
def test_plans_vary_in_nothing_that_the_script_does_not_take(honours: set[str], checkpointing: Checkpointing) -> None:
    found = candidates(asked(*sorted(honours), of=job(gradient_checkpointing=checkpointing)))
    assert found
    for each in (candidate.plan for candidate in found):
        assert each.tp == 1
        assert each.global_batch_size == 16
        assert Honour.WORLD_SIZE in honours or each.num_gpus == 1
        assert Honour.MICRO_BATCH in honours or each.accumulation_steps == 1
        assert Honour.ZERO in honours or each.zero_stage == 1
        assert Honour.OFFLOAD in honours or not each.offload_optimizer
        fixed = checkpointing is Checkpointing.ON
        assert Honour.CHECKPOINTING in honours or each.activation_checkpointing == fixed


@pytest.mark.parametrize(("joined", "reasons"), [(True, {ReasonCode.PREDICTED_NOT_LAUNCHABLE}), (False, set())])
def test_experts_that_bitsandbytes_would_leave_in_16_bits_are_not_predicted_in_4(
    joined: bool, reasons: set[ReasonCode]
) -> None:
    of = asked(*EVERYTHING, of=job(lora=LoraSpec(quantization="nf4")))
    calibration = CALIBRATION if joined else replace(CALIBRATION, versions={"transformers": "4.48.3"})
    found = plan_candidates(replace(of, shape=MIXTRAL), mixed_cluster(), calibration, "closed-form")
    unlaunchable = {each.reason.code for each in found} & {ReasonCode.PREDICTED_NOT_LAUNCHABLE}
    assert unlaunchable == reasons
    assert not joined or not any(each.feasible for each in found)


def test_a_script_that_takes_everything_has_the_built_in_trainers_memory() -> None:
    own = {each.shape: each.memory for each in plans(request(of=job()))}
    of_script = {each.shape: each.memory for each in plans(asked(*EVERYTHING))}
    shared = own.keys() & of_script.keys()
    assert shared
    assert all(own[shape] == of_script[shape] for shape in shared)
    assert {each.source for each in of_script.values()} == {MemorySource.PREDICTED}


def test_a_rank_that_divides_no_states_holds_all_of_them() -> None:
    def of_two(*honours: str) -> int:
        found = candidates(asked("world_size", "micro_batch", *honours))
        wanted = [each.plan for each in found if each.plan.num_gpus == 2 and each.plan.zero_stage == 1]
        return min(each.memory.peak_allocated_bytes for each in wanted)

    assert of_two() > of_two("zero")


@pytest.mark.parametrize("memory", [None, "100 MiB"])
def test_the_number_of_gpus_stays_within_the_scripts_limits(memory: str | None) -> None:
    found = plans(asked("world_size", memory=memory, min_gpus=2, max_gpus=2))
    assert {each.num_gpus for each in found} == {2}
    assert {each.num_gpus for each in plans(asked("world_size", memory=memory))} == {1, 2, 4}


def test_more_gpus_are_not_the_remedy_where_each_lacks_the_declared_memory() -> None:
    of = asked("world_size", memory="400 GiB", of=job(global_batch=64), min_gpus=64)
    refusal = smallest_remedy(of, mixed_cluster(), CALIBRATION)
    assert refusal.code is ReasonCode.INSUFFICIENT_GPU_MEMORY


def test_declared_memory_is_what_decides_where_no_model_is_named() -> None:
    found = candidates(asked("world_size", memory="300 MiB"))
    fitting = [each.plan for each in found if each.feasible]
    assert {each.gpu_type for each in fitting} == {"b", "c"}
    assert {each.memory.source for each in fitting} == {MemorySource.DECLARED}
    assert {each.memory.required_bytes for each in fitting} == {300 * 1024**2}
    assert [each.rank for each in found if each.feasible] == list(range(1, len(fitting) + 1))
    short = [each.reason for each in found if not each.feasible and each.plan.gpu_type == "a"]
    assert {each.code for each in short} == {ReasonCode.INSUFFICIENT_GPU_MEMORY}
    assert "memory.per_gpu as declared" in short[0].detail


def test_adapters_of_a_model_that_nobody_names_change_no_plan() -> None:
    with_adapters = asked("world_size", memory="100 MiB", of=job(lora=LoraSpec(rank=4)))
    assert [each.shape for each in plans(with_adapters)] == [
        each.shape for each in plans(asked("world_size", memory="100 MiB"))
    ]


def test_more_memory_than_any_gpu_has_is_refused_with_what_would_help() -> None:
    of = asked("world_size", memory="4 GiB")
    assert not plans(of)
    reason = smallest_remedy(of, mixed_cluster(), CALIBRATION)
    assert "4.0 GiB" in reason.sentence


def test_the_policy_of_the_paper_plans_scripts_alike() -> None:
    of = asked("world_size")
    assert candidates(of, "paper") == candidates(of)


@pytest.mark.parametrize("memory", [None, "100 MiB"])
def test_a_checkpoint_of_the_same_shape_only_keeps_width_and_stage(memory: str | None) -> None:
    written = PlanShape(
        gpu_type="a", num_gpus=2, tp=1, zero_stage=1, micro_batch_size=8, activation_checkpointing=False
    )
    found = plans(replace(asked("world_size", "micro_batch", memory=memory), resumes_as=written))
    assert {(each.num_gpus, each.zero_stage) for each in found} == {(2, 1)}
    assert {each.gpu_type for each in found} == {"a", "b"}


def test_a_script_of_which_nothing_is_known_rehearses_on_one_whole_card_the_largest_first() -> None:
    found = plans(unmeasured(*EVERYTHING))
    assert {each.memory.source for each in found} == {MemorySource.REHEARSAL}
    assert {(each.num_gpus, each.micro_batch_size) for each in found} == {(1, 1)}
    assert all(each.memory.required_bytes == each.gpu_memory_bytes for each in found)
    assert [each.gpu_memory_bytes for each in found] == sorted((each.gpu_memory_bytes for each in found), reverse=True)


def test_what_a_rehearsal_took_makes_plans_of_all_widths_with_a_wide_margin() -> None:
    first = plans(unmeasured(*EVERYTHING))[0]
    found = plans(unmeasured(*EVERYTHING, runs=(took(40, first.shape, whole=False),)))
    assert {each.memory.source for each in found} == {MemorySource.LEARNT}
    assert {each.num_gpus for each in found} == {1, 2, 4}
    own = next(each for each in found if each.shape == first.shape)
    assert own.memory.margin_share == pytest.approx(2 * CALIBRATION.headroom_share, abs=0.11)
    assert "learnt from 1 run" in candidates(unmeasured(*EVERYTHING, runs=(took(40, first.shape),)))[0].reason.sentence


def test_a_whole_run_of_the_very_plan_has_half_the_margin() -> None:
    shape = plans(unmeasured())[0].shape

    def margin(whole: bool) -> float:
        runs = (took(200, shape, whole=whole),)
        return next(each for each in plans(unmeasured(runs=runs)) if each.shape == shape).memory.margin_share

    assert margin(True) == pytest.approx(margin(False) / 2, rel=0.01)


def test_a_plan_that_ran_on_a_card_stays_one_however_little_was_left() -> None:
    first = plans(unmeasured())[0]
    full = took(first.gpu_memory_bytes // 1024**2 - 1, first.shape, whole=False)
    assert first.shape in [each.shape for each in plans(unmeasured(runs=(full,)))]


def test_after_a_rehearsal_ran_out_the_next_saves_memory_and_never_the_same() -> None:
    first = plans(unmeasured(*EVERYTHING))[0]
    out = took(first.gpu_memory_bytes // 1024**2, first.shape, ran_out=True)
    found = plans(unmeasured(*EVERYTHING, runs=(out,)))
    assert first.shape not in [each.shape for each in found]
    assert {each.memory.source for each in found} == {MemorySource.REHEARSAL}
    assert all(each.activation_checkpointing for each in found if each.num_gpus == 1)


def test_a_rehearsal_that_nothing_can_follow_is_refused_with_what_it_took_at_least() -> None:
    first = plans(unmeasured())[0]
    out = took(first.gpu_memory_bytes // 1024**2, first.shape, ran_out=True)
    of = unmeasured(runs=(out,))
    assert not plans(of)
    assert smallest_remedy(of, mixed_cluster(), CALIBRATION).code is ReasonCode.INSUFFICIENT_GPU_MEMORY


def test_runs_of_a_script_come_before_what_it_declares() -> None:
    of = asked("world_size", memory="300 MiB")
    shape = plans(of)[0].shape
    found = plans(replace(of, measured_runs=MeasuredRuns(runs=(took(100, shape),))))
    assert {each.memory.source for each in found if each.num_gpus == shape.num_gpus} == {MemorySource.LEARNT}


def test_declared_memory_is_no_less_than_what_was_run_out_of() -> None:
    of = asked("world_size", memory="100 MiB")
    first = plans(of)[0]
    out = took(first.gpu_memory_bytes // 1024**2, first.shape, ran_out=True)
    found = plans(replace(of, measured_runs=MeasuredRuns(runs=(out,))))
    assert first.shape not in [each.shape for each in found]
    assert found


def test_what_steps_of_models_took_says_nothing_of_a_script_without_one() -> None:
    types = [each.name for each in mixed_cluster().gpu_types]
    groups = [
        ResidualGroup(kind=DeviceKind.VIRTUAL, family="llama", gpu_type=each, zero_stage=1, checkpointing=False)
        for each in types
    ]
    slow = tuple(
        Residual(group=each, predicted_bytes=1, measured_bytes=1, step_ratio=2.0) for each in groups for _ in range(5)
    )
    known = replace(asked(memory="50 MiB"), residuals=Residuals(slow))
    assert known.residuals.pace(DeviceKind.VIRTUAL, "any", types[0]) > 1.5
    assert {each.model_step_s for each in plans(known)} == {None}


def test_pairs_and_a_reference_take_more_than_single_sequences_and_a_head_of_classes_less_than_logits() -> None:
    def peak(task: Task, of: TrainingJob | None = None) -> int:
        return max(each.plan.memory.peak_allocated_bytes for each in candidates(asked(task=task, of=of)))

    assert peak(Task.DPO) > peak(Task.DPO, job(lora=LoraSpec())) > peak(Task.SFT, job(lora=LoraSpec()))
    assert peak(Task.REWARD) > peak(Task.CLASSIFICATION)
    assert peak(Task.LANGUAGE_MODEL) > peak(Task.CLASSIFICATION)
