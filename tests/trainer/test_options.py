"""What a job or plan may choose beside the layout: each choice trains, and resumes where it stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.families import config_of
from tests.trainer.launching import GPT2, Case, LaunchServer, forget_checkpoint, losses

from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.trainer.model.loading import load_config
from frenzy.trainer.model.making import make_model

pytestmark = pytest.mark.thorough

# Wide enough for blocks of 64 weights.
WIDE_GPT2 = config_of("gpt2")
WIDE_LLAMA = config_of("llama")
LORA = {"rank": 4, "alpha": 16}
NF4 = {**LORA, "quantization": "nf4"}
ADAPTERS_RATE = {"learning_rate": 0.05}
TOLERANCE = 2e-5
# 8-bit moments meet other blocks on another layout and are rounded anew.
REQUANTISED = 5e-3


def train(server: LaunchServer, case: Case) -> list[float]:
    result = server.run(case)
    assert result.exit_code == ExitCode.DONE, result.detail
    return losses(case)


@pytest.fixture(scope="module")
def plain(server: LaunchServer, text: str, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("plain")
    return train(server, Case(run_dir=str(folder), data=text, micro_batch_size=2))


SAME: dict[str, dict[str, Any]] = {
    "fused loss, accumulation": {"training": {"loss": "fused"}, "micro_batch_size": 2},
    "fused loss, checkpointing": {"training": {"loss": "fused"}, "num_gpus": 2, "activation_checkpointing": True},
    "eager, stage 2": {"training": {"attention": "eager"}, "num_gpus": 2},
    "compiled, checkpointing": {"training": {"compile": True}, "activation_checkpointing": True},
    "offload, stage 1": {"offload_optimizer": True, "zero_stage": 1, "num_gpus": 2, "micro_batch_size": 2},
    "offload, stage 2": {"offload_optimizer": True, "zero_stage": 2, "num_gpus": 2, "micro_batch_size": 2},
    "offload, stage 3": {"offload_optimizer": True, "zero_stage": 3, "num_gpus": 2, "micro_batch_size": 2},
}


@pytest.mark.parametrize("choices", SAME.values(), ids=SAME.keys())
def test_a_choice_of_how_changes_no_loss(
    server: LaunchServer, text: str, tmp_path: Path, plain: list[float], choices: dict[str, Any]
) -> None:
    assert train(server, Case(run_dir=str(tmp_path), data=text, **choices)) == pytest.approx(plain, abs=TOLERANCE)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A training that stops and goes on with other choices of the plan."""

    training: dict[str, Any]
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=lambda: WIDE_GPT2)
    tolerance: float = TOLERANCE


TWO = {"num_gpus": 2}
SPLIT = {"num_gpus": 2, "tp": 2}
OFFLOAD = {"offload_optimizer": True}
EIGHT_BIT = {"optimizer": "adamw-8bit"}
MOVES: dict[str, Moved] = {
    "8 bits, same place": Moved(training=EIGHT_BIT, tolerance=1e-6),
    "8 bits, same two ranks of stage 3": Moved(
        training=EIGHT_BIT, before=TWO | {"zero_stage": 3}, after=TWO | {"zero_stage": 3}, tolerance=1e-6
    ),
    "8 bits, two ranks of stage 3 to one": Moved(
        training=EIGHT_BIT | {"precision": "bf16"}, before=TWO | {"zero_stage": 3}, tolerance=REQUANTISED
    ),
    "8 bits, one to two tensor-parallel ranks": Moved(
        training=EIGHT_BIT, after=SPLIT, model=WIDE_LLAMA, tolerance=REQUANTISED
    ),
    "adapters, stage 3 to 1": Moved(
        training={"lora": LORA, **ADAPTERS_RATE}, before=TWO | {"zero_stage": 3}, after={"zero_stage": 1}
    ),
    "4 bits, stage 1 to 3": Moved(
        training={"lora": NF4, **ADAPTERS_RATE}, before={"zero_stage": 1}, after=TWO | {"zero_stage": 3}
    ),
    "4 bits twice, stage 3 to 2, fused": Moved(
        training={"lora": {**NF4, "double_quantization": True}, "loss": "fused", **ADAPTERS_RATE},
        before={"zero_stage": 3},
        after=TWO,
        model=WIDE_LLAMA,
    ),
    "4 bits of experts, two ranks of stage 3 to stage 1": Moved(
        training={"lora": NF4, **ADAPTERS_RATE},
        before=TWO | {"zero_stage": 3},
        after={"zero_stage": 1},
        model=config_of("mixtral"),
    ),
    "4 bits of experts twice, checkpointing, stage 2 to two ranks of 3": Moved(
        training={"lora": {**NF4, "double_quantization": True}, **ADAPTERS_RATE},
        before={"activation_checkpointing": True},
        after=TWO | {"zero_stage": 3, "activation_checkpointing": True},
        model=config_of("qwen3_moe"),
    ),
    "4 bits, 8-bit moments, bf16, same place": Moved(
        training={"lora": {**NF4, "rank": 16}, "precision": "bf16", **EIGHT_BIT, **ADAPTERS_RATE}, tolerance=1e-6
    ),
    "onto the host, stage 1 to 3": Moved(
        training={}, before={"zero_stage": 1}, after=TWO | OFFLOAD | {"zero_stage": 3}
    ),
    "off the host, stage 3 to 2": Moved(training={}, before=TWO | OFFLOAD | {"zero_stage": 3}),
    "onto the host, split": Moved(training={}, after=SPLIT | OFFLOAD, model=WIDE_LLAMA),
    "adapters, off the host": Moved(training={"lora": LORA, **ADAPTERS_RATE}, before=TWO | OFFLOAD),
    "compiled": Moved(training={"compile": True}, before={"zero_stage": 2}, after={"zero_stage": 1}, model=WIDE_LLAMA),
    "8 bits on the host": Moved(training=EIGHT_BIT, before=OFFLOAD, after=OFFLOAD, tolerance=1e-6),
}


@pytest.mark.parametrize("moved", MOVES.values(), ids=MOVES.keys())
def test_it_learns_and_goes_on_elsewhere_as_if_it_had_never_stopped(
    server: LaunchServer, text: str, tmp_path: Path, moved: Moved
) -> None:
    whole = Case(
        run_dir=str(tmp_path),
        data=text,
        model=moved.model,
        num_steps=5,
        training=moved.training,
        job={"checkpoint": {"every_steps": 3}},
        **moved.before,
    )
    straight = train(server, whole)
    assert straight[-1] < straight[0] - 0.01
    forget_checkpoint(whole, 5)
    plan = {"num_gpus": 1, "tp": 1, "zero_stage": 2, "offload_optimizer": False, **moved.after}
    again = replace(whole, attempt=2, **plan)
    assert train(server, again) == pytest.approx(straight[3:], abs=moved.tolerance)


@pytest.mark.parametrize(
    ("model", "quantised"),
    [(WIDE_GPT2, r"\.c_.*weight$"), (config_of("mixtral"), r"(_proj\.weight|experts\.\w+)$")],
    ids=["gpt2", "mixtral"],
)
def test_the_export_of_4_bit_weights_is_a_plain_model_close_to_the_first_one(
    server: LaunchServer, text: str, tmp_path: Path, model: dict[str, Any], quantised: str
) -> None:
    from transformers import AutoModelForCausalLM

    training = {"lora": NF4, "learning_rate": 1e-9}
    case = Case(run_dir=str(tmp_path), data=text, model=model, training=training, num_steps=1, num_gpus=2, zero_stage=3)
    train(server, case)
    exported: Any = AutoModelForCausalLM.from_pretrained(RunPaths(case.run_dir).model_dir)
    job = case.spec().job
    first = dict(
        make_model(replace(job, training=replace(job.training, lora=None)), load_config(job.model)).named_parameters()
    )
    for name, weight in exported.named_parameters():
        if re.search(quantised, name):
            error = torch.linalg.norm(weight - first[name]) / torch.linalg.norm(first[name])
            assert 0.01 < error < 0.12, name
        elif name != "model.embed_tokens.weight":  # the padding's row is drawn by the id that the data have for it
            assert torch.equal(weight, first[name]), name


def test_a_model_too_narrow_for_blocks_of_64_is_refused_4_bit_weights(
    server: LaunchServer, text: str, tmp_path: Path
) -> None:
    result = server.run(Case(run_dir=str(tmp_path), data=text, model=GPT2 | {"n_inner": 96}, training={"lora": NF4}))
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "training.lora.quantization: 'nf4' is refused" in result.detail


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3"])
def test_attention_without_its_kernels_is_refused_before_the_first_step(
    server: LaunchServer, text: str, tmp_path: Path, attention: str
) -> None:
    training = {"attention": attention, "precision": "bf16"}
    result = server.run(Case(run_dir=str(tmp_path), data=text, training=training))
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert f"training.attention: '{attention}' is refused" in result.detail


def test_liger_without_a_gpu_is_refused_before_the_first_step(server: LaunchServer, text: str, tmp_path: Path) -> None:
    result = server.run(Case(run_dir=str(tmp_path), data=text, model=WIDE_LLAMA, training={"kernels": "liger"}))
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "training.kernels: 'liger' is refused; liger-kernel and a GPU for it are not there" in result.detail


def test_attention_that_a_family_lacks_is_refused_with_the_one_it_has(
    server: LaunchServer, text: str, tmp_path: Path
) -> None:
    mpt = {"model_type": "mpt", "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 260}
    result = server.run(Case(run_dir=str(tmp_path), data=text, model=mpt))
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "training.attention: 'sdpa' is refused; mpt has no sdpa attention; use eager" in result.detail
