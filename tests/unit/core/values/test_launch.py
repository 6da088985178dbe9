"""The DeepSpeed config says what the plan and the job chose, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import DataSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.values.launch import deepspeed_config
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.core.values.run_files import how_ended
from frenzy.core.values.workload import WorkloadSpec

JOB = TrainingJob(
    name="tiny",
    model=ModelSpec(config={"model_type": "gpt2"}),
    data=DataSpec(path="text.txt"),
    training=TrainingSpec(max_steps=1, global_batch_size=8),
)
PLAN = ResourcePlan(
    gpu_type="a",
    num_gpus=2,
    dp=2,
    tp=1,
    zero_stage=2,
    micro_batch_size=2,
    accumulation_steps=2,
    activation_checkpointing=False,
    memory=MemoryPrediction(peak_allocated_bytes=1, required_bytes=1, host_bytes=1, at="backward"),
    gpu_memory_bytes=1,
    step_time_s=1.0,
    samples_per_s=1.0,
    predicted_run_s=1.0,
    predicted_cost=0.0,
)


def config_of(
    training: dict[str, Any] | None = None, plan: dict[str, Any] | None = None, kind: DeviceKind = DeviceKind.VIRTUAL
) -> dict[str, Any]:
    job = replace(JOB, training=replace(JOB.training, **(training or {})))
    return deepspeed_config(job, replace(PLAN, **(plan or {})), kind)


@pytest.mark.parametrize(
    ("optimizer", "kind", "own"),
    [
        ("adamw", "AdamW", {"betas": [0.9, 0.999], "torch_adam": True}),
        ("adamw-8bit", "AdamW8bit", {"betas": [0.9, 0.999]}),
        ("sgd", "SGD", {"momentum": 0.9}),
    ],
)
def test_each_optimizer_is_named_with_its_settings(optimizer: str, kind: str, own: dict[str, Any]) -> None:
    assert config_of({"optimizer": optimizer})["optimizer"] == {
        "type": kind,
        "params": {"lr": 3e-4, "weight_decay": 0.0, **own},
    }


def test_a_script_at_stage_3_can_save_its_model_whole() -> None:
    flag = "stage3_gather_16bit_weights_on_model_save"
    script = replace(JOB, workload=WorkloadSpec(command=("python", "train.py")))
    for stage in (1, 2, 3):
        plan = replace(PLAN, zero_stage=stage)
        zero = deepspeed_config(script, plan, DeviceKind.VIRTUAL)["zero_optimization"]
        assert zero.get(flag, False) == (stage == 3)
        assert flag not in deepspeed_config(JOB, plan, DeviceKind.VIRTUAL)["zero_optimization"]


@pytest.mark.parametrize("plan", [{}, {"offload_optimizer": True}])
def test_a_card_updates_by_one_kernel_also_when_its_optimizer_is_on_the_host(plan: dict[str, Any]) -> None:
    cuda, virtual = (
        config_of(plan=plan, kind=kind)["optimizer"]["params"] for kind in (DeviceKind.CUDA, DeviceKind.VIRTUAL)
    )
    assert cuda == {**virtual, "fused": True}


def test_offload_puts_torchs_own_optimizer_on_the_host() -> None:
    config = config_of(plan={"offload_optimizer": True})
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    assert config["zero_force_ds_cpu_optimizer"] is False
    plain = config_of()
    assert "offload_optimizer" not in plain["zero_optimization"]
    assert "zero_force_ds_cpu_optimizer" not in plain


@pytest.mark.parametrize(
    ("plan", "overlapped"),
    [
        ({"zero_stage": 1}, True),
        ({}, True),
        ({"zero_stage": 3}, False),  # does so by itself
        ({"dp": 1, "num_gpus": 1}, False),
        ({"offload_optimizer": True}, False),
    ],
)
def test_ranks_on_cards_reduce_one_bucket_while_the_next_one_fills(plan: dict[str, Any], overlapped: bool) -> None:
    assert config_of(plan=plan, kind=DeviceKind.CUDA)["zero_optimization"].get("overlap_comm", False) is overlapped
    assert "overlap_comm" not in config_of(plan=plan)["zero_optimization"]


def test_what_is_offloaded_from_a_card_is_page_locked() -> None:
    config = config_of(plan={"offload_optimizer": True}, kind=DeviceKind.CUDA)
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


@pytest.mark.parametrize(
    ("precision", "plan", "more"),
    [
        (Precision.BF16, {"zero_stage": 1}, {"communication_data_type", "data_types"}),
        (Precision.BF16, {}, {"data_types"}),
        (Precision.FP16, {"zero_stage": 3}, {"data_types"}),
        (Precision.BF16, {"accumulation_steps": 1}, set()),
        (Precision.BF16, {"offload_optimizer": True}, set()),
        (Precision.FP32, {}, set()),
        (Precision.AUTOCAST_BF16, {}, set()),
    ],
)
def test_gradients_of_several_micro_batches_in_16_bits_are_summed_in_fp32(
    precision: Precision, plan: dict[str, Any], more: set[str]
) -> None:
    config = config_of({"precision": precision}, plan)
    assert config.keys() & {"communication_data_type", "data_types"} == more
    assert config.get("data_types", {}).get("grad_accum_dtype", "fp32") == "fp32"
    released = config.get("bf16", {}).get("immediate_grad_update", False)
    assert released is (precision is Precision.BF16 and "communication_data_type" in more)


@pytest.mark.parametrize("training", [{"loss": "fused"}, {"attention": "eager"}])
def test_how_loss_and_attention_are_computed_is_no_matter_of_deepspeed(training: dict[str, Any]) -> None:
    assert config_of(training) == config_of()


@pytest.mark.parametrize(
    ("exit_code", "how"),
    [
        (3, "ended with 3"),
        (137, "was killed by SIGKILL"),
        (139, "was killed by SIGSEGV"),
        (255, "was killed by signal 127"),
    ],
)
def test_an_exit_code_says_which_signal_killed(exit_code: int, how: str) -> None:
    assert how_ended(exit_code) == how
