"""The DeepSpeed config says what the plan and the job chose, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.launch import deepspeed_config, how_ended
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan

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


def config_of(training: dict[str, Any] | None = None, plan: dict[str, Any] | None = None) -> dict[str, Any]:
    job = replace(JOB, training=replace(JOB.training, **(training or {})))
    return deepspeed_config(job, replace(PLAN, **(plan or {})))


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


def test_offload_puts_torchs_own_optimizer_on_the_host() -> None:
    config = config_of(plan={"offload_optimizer": True})
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    assert config["zero_force_ds_cpu_optimizer"] is False
    plain = config_of()
    assert "offload_optimizer" not in plain["zero_optimization"]
    assert "zero_force_ds_cpu_optimizer" not in plain


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
