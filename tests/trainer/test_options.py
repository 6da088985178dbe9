"""What a job may choose beside the plan: optimizer, loss, attention, 4-bit base weights; each trains, each resumes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launching import GPT2, LLAMA, Case, LaunchServer, losses

from frenzy.core.launch import ExitCode

LORA = {"rank": 4, "alpha": 16}
NF4 = {**LORA, "quantization": "nf4"}


@pytest.fixture(scope="module")
def default_losses(server: LaunchServer, text: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("default")
    found = {}
    for name, model in (("gpt2", GPT2), ("llama", LLAMA)):
        case = Case(run_dir=str(folder / name), data=text, model=model, micro_batch_size=2)
        assert server.run(case).exit_code == ExitCode.DONE
        found[name] = losses(case)
    yield found


@pytest.mark.parametrize("options", [{"loss": "fused"}, {"attention": "eager"}], ids=str)
@pytest.mark.parametrize(("model", "num_gpus", "stage"), [("gpt2", 1, 1), ("llama", 2, 2), ("gpt2", 2, 3)])
def test_how_loss_and_attention_are_computed_changes_no_loss(
    server: LaunchServer,
    text: str,
    tmp_path: Path,
    default_losses: Any,
    options: Any,
    model: str,
    num_gpus: int,
    stage: int,
) -> None:
    config = {"gpt2": GPT2, "llama": LLAMA}[model]
    case = Case(
        run_dir=str(tmp_path),
        data=text,
        model=config,
        num_gpus=num_gpus,
        zero_stage=stage,
        micro_batch_size=2,
        training=options,
    )
    assert server.run(case).exit_code == ExitCode.DONE
    assert losses(case) == pytest.approx(default_losses[model], abs=2e-5)


@pytest.mark.parametrize(
    ("training", "num_gpus", "stage"),
    [
        ({"optimizer": "adamw-8bit"}, 1, 1),
        ({"optimizer": "adamw-8bit"}, 2, 2),
        ({"optimizer": "adamw-8bit"}, 2, 3),
        ({"lora": LORA, "learning_rate": 0.05}, 1, 1),
        ({"lora": LORA, "learning_rate": 0.05}, 2, 3),
        ({"lora": NF4, "learning_rate": 0.05}, 1, 1),
        ({"lora": {**NF4, "double_quantization": True}, "learning_rate": 0.05, "precision": "bf16"}, 2, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_it_learns_and_a_resumed_run_is_the_run_that_never_stopped(
    server: LaunchServer, text: str, tmp_path: Path, model: Any, training: Any, num_gpus: int, stage: int
) -> None:
    checkpoint = {"checkpoint": {"every_steps": 3}}
    whole = Case(
        run_dir=str(tmp_path / "whole"), data=text, model=model, num_gpus=num_gpus, zero_stage=stage, num_steps=6,
        training=training, job=checkpoint,
    )  # fmt: skip
    assert server.run(whole).exit_code == ExitCode.DONE
    straight = losses(whole)
    assert straight[-1] < straight[0] - 0.01
    first = replace(whole, run_dir=str(tmp_path / "parts"), num_steps=3)
    assert server.run(first).exit_code == ExitCode.DONE
    second = replace(first, attempt=2, num_steps=6)
    assert server.run(second).exit_code == ExitCode.DONE
    assert losses(first) + losses(second) == pytest.approx(straight, abs=1e-6)
