"""Trainings from published weights in several files, read by the slices that each rank needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.families import config_of
from tests.trainer.launching import Case, LaunchServer, losses
from transformers import AutoConfig, AutoModelForCausalLM

from frenzy.core.values.run_files import ExitCode, RunPaths

pytestmark = pytest.mark.thorough

ROUNDING = 2e-5
LORA = {"rank": 4, "alpha": 16}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("published")
    given = {**config_of("llama"), "bos_token_id": 256, "eos_token_id": 256}
    config = AutoConfig.for_model(given.pop("model_type"), **given)  # type: ignore[no-untyped-call]
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="60KB")
    return str(folder)


def start(server: LaunchServer, weights: str, text: str, folder: Path, **plan: Any) -> Case:
    case = Case(run_dir=str(folder), data=text, model_section={"path": weights, "tokenizer": "byte"}, **plan)
    result = server.run(case)
    assert result.exit_code == ExitCode.DONE, result.detail
    return case


@pytest.mark.parametrize("training", [{}, {"lora": LORA}], ids=["full", "adapters"])
def test_slices_of_several_ranks_train_as_the_whole_model_does(
    server: LaunchServer, weights: str, text: str, tmp_path: Path, training: dict[str, Any]
) -> None:
    whole = start(server, weights, text, tmp_path / "whole", training=training)
    sliced = start(server, weights, text, tmp_path / "sliced", training=training, num_gpus=2, zero_stage=3)
    assert losses(sliced) == pytest.approx(losses(whole), abs=ROUNDING)
    exported = [AutoModelForCausalLM.from_pretrained(RunPaths(each.run_dir).model_dir) for each in (whole, sliced)]
    for (name, one), (_, other) in zip(exported[0].named_parameters(), exported[1].named_parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, msg=name)


def test_a_resumed_training_does_not_need_the_first_weights_again(
    server: LaunchServer, weights: str, text: str, tmp_path: Path
) -> None:
    """With adapters, so that frozen weights, too, come from the checkpoint."""
    training = {"lora": LORA, "learning_rate": 0.05}
    reference = losses(start(server, weights, text, tmp_path / "all", training=training, num_steps=4))
    first = start(server, weights, text, tmp_path / "run", training=training, num_steps=2)
    assert losses(first) == reference[:2]
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "config.json").write_bytes((Path(weights) / "config.json").read_bytes())
    (moved / "model.safetensors").write_text("damaged since")
    second = start(server, str(moved), text, tmp_path / "run", training=training, num_gpus=2, zero_stage=3, attempt=2)
    assert losses(second) == pytest.approx(reference[2:], abs=ROUNDING)
