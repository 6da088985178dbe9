"""Whatever the plan, the training is the same: equal to plain torch, step by step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.launching import GPT2, LLAMA, Case, LaunchServer, losses, records
from tests.trainer.reference import train_plainly

from frenzy.core.values import codec
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.telemetry import Heartbeat

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def plain(text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("plain")
    cases = {"gpt2": Case(run_dir="", data=text), "llama": Case(run_dir="", data=text, model=LLAMA)}
    return {name: train_plainly(case, folder)[0] for name, case in cases.items()}


PLANS: dict[str, dict[str, Any]] = {
    "one worker, whole batch": {"micro_batch_size": 8, "zero_stage": 1},
    "one worker, accumulation and checkpointing": {"micro_batch_size": 2, "activation_checkpointing": True},
    "two workers, stage 1": {"num_gpus": 2, "zero_stage": 1},
    "two workers, stage 2, accumulation": {"num_gpus": 2, "micro_batch_size": 2},
    "two workers, stage 3, accumulation": {"num_gpus": 2, "micro_batch_size": 1, "zero_stage": 3},
    "two workers, stage 3, checkpointing": {"num_gpus": 2, "zero_stage": 3, "activation_checkpointing": True},
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_every_plan_trains_as_plain_torch(
    server: LaunchServer, text: str, tmp_path: Path, plain: dict[str, list[float]], plan: dict[str, Any]
) -> None:
    case = Case(run_dir=str(tmp_path), data=text, **plan)
    assert server.run(case).exit_code == ExitCode.DONE
    assert losses(case) == pytest.approx(plain["gpt2"], abs=TOLERANCE)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_decay_of_matrices_alone_is_that_of_plain_torch(
    server: LaunchServer, text: str, tmp_path: Path, zero_stage: int
) -> None:
    training = {"weight_decay": 0.9, "weight_decay_on": "matrices", "learning_rate": 2e-2}
    case = Case(run_dir=str(tmp_path / "run"), data=text, num_gpus=2, zero_stage=zero_stage, training=training)
    assert server.run(case).exit_code == ExitCode.DONE
    expected, _ = train_plainly(case, tmp_path / "plain")
    assert losses(case) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_tensor_parallel_trains_as_plain_torch(
    server: LaunchServer, text: str, tmp_path: Path, plain: dict[str, list[float]], zero_stage: int
) -> None:
    case = Case(run_dir=str(tmp_path), data=text, model=LLAMA, num_gpus=2, tp=2, zero_stage=zero_stage)
    assert server.run(case).exit_code == ExitCode.DONE
    assert losses(case) == pytest.approx(plain["llama"], abs=TOLERANCE)
    assert _exported(case).num_parameters() > 0


def test_bf16_follows_fp32(server: LaunchServer, text: str, tmp_path: Path, plain: dict[str, list[float]]) -> None:
    case = Case(run_dir=str(tmp_path), data=text, num_gpus=2, training={"precision": "bf16"})
    assert server.run(case).exit_code == ExitCode.DONE
    assert losses(case) == pytest.approx(plain["gpt2"], abs=0.03)
    assert next(_exported(case).parameters()).dtype == torch.bfloat16


def test_exported_model_is_the_trained_one(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path / "run"), data=text, num_gpus=2, zero_stage=3)
    result = server.run(case)
    assert (result.exit_code, result.last_step, result.checkpoint_step) == (ExitCode.DONE, 4, 4)
    _, expected = train_plainly(case, tmp_path / "plain")
    exported = _exported(case)
    tokens = torch.arange(32).unsqueeze(0) + 65
    with torch.no_grad():
        assert exported(tokens, labels=tokens).loss.item() == pytest.approx(
            expected.eval()(tokens, labels=tokens).loss.item(), abs=1e-4
        )
    marker = json.loads((Path(case.run_dir) / "model/frenzy_model.json").read_text())
    assert marker == {"job": "tiny", "step": 4, "dtype": "float32"}


def test_dropout_does_not_depend_on_the_number_of_workers(server: LaunchServer, text: str, tmp_path: Path) -> None:
    model = {**GPT2, "resid_pdrop": 0.2, "embd_pdrop": 0.2}
    one = Case(run_dir=str(tmp_path / "one"), data=text, model=model, micro_batch_size=2)
    two = replace(one, run_dir=str(tmp_path / "two"), num_gpus=2)
    for case in (one, two):
        assert server.run(case).exit_code == ExitCode.DONE
    assert losses(one) == pytest.approx(losses(two), abs=TOLERANCE)


def test_adapters_train_alone_and_are_merged_in_the_export(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(
        run_dir=str(tmp_path), data=text, num_gpus=2, num_steps=6, training={"lora": {"rank": 4}, "learning_rate": 0.05}
    )
    assert server.run(case).exit_code == ExitCode.DONE
    first, *_, last = losses(case)
    assert last < first - 0.01
    assert (tmp_path / "model/adapter/adapter_model.safetensors").exists()
    assert not any("lora" in name for name, _ in _exported(case).named_parameters())


def test_warm_start_begins_where_another_run_ended(server: LaunchServer, text: str, tmp_path: Path) -> None:
    first = Case(run_dir=str(tmp_path / "first"), data=text, num_steps=10)
    assert server.run(first).exit_code == ExitCode.DONE
    second = Case(run_dir=str(tmp_path / "second"), data=text, job={"checkpoint": {"warm_start": "first"}})
    assert server.run(second).exit_code == ExitCode.DONE
    assert losses(second)[0] < losses(first)[0] - 0.3


def test_each_rank_reports_each_step_once(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path), data=text, num_gpus=2, num_steps=5, gpus_per_node=(1, 1))
    assert server.run(case).exit_code == ExitCode.DONE
    for rank in (0, 1):
        found = records(case, rank)
        assert [each.step for each in found] == [1, 2, 3, 4, 5]
        assert {each.rank for each in found} == {rank}
        for each in found:
            assert 0 < each.peaks.allocated_bytes <= each.capacity_bytes == case.memory_bytes
            assert each.step_time_s > 0
            assert each.tokens_per_s == pytest.approx(8 * 32 / 2 / each.step_time_s)
            assert each.grad_norm is not None
            assert each.grad_norm > 0
            assert each.host_rss_bytes > 0
    assert [each.loss for each in records(case, 0)] == [each.loss for each in records(case, 1)]
    told = codec.loads(Heartbeat, Path(RunPaths(case.run_dir).heartbeat(1, 0)).read_text())
    assert told.phase == "saving the finished model", "the last of the signs of progress between steps"


def test_learning_rate_warms_up_and_decays(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(
        run_dir=str(tmp_path),
        data=text,
        num_steps=6,
        training={"warmup_steps": 2, "lr_schedule": "linear", "optimizer": "sgd"},
    )
    assert server.run(case).exit_code == ExitCode.DONE
    assert [each.learning_rate for each in records(case)] == pytest.approx([1e-3, 2e-3, 2e-3, 1.5e-3, 1e-3, 5e-4])


def _exported(case: Case) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = RunPaths(case.run_dir).model_dir
    assert AutoTokenizer.from_pretrained(folder).decode([72, 105]) == "Hi"
    return AutoModelForCausalLM.from_pretrained(folder)
