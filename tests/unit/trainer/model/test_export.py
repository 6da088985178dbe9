"""The finished model's files, written tensor by tensor by a single rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.trainer.families import config_of
from tests.trainer.launching import Case
from torch import distributed
from transformers import AutoModelForCausalLM

from frenzy.core.values.job import TrainingJob
from frenzy.trainer import files
from frenzy.trainer.collective import from_rank0_at_length, gathered_at_length
from frenzy.trainer.model.export import READY_FILE, ExportError, export_model
from frenzy.trainer.model.loading import load_config
from frenzy.trainer.model.making import make_model

LORA = {"rank": 4, "alpha": 16}


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def export(job: TrainingJob, module: Any, folder: Path, **options: Any) -> Path:
    engine = SimpleNamespace(module=module, optimizer=None, autotp_size=lambda: 1)
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    given = {"model_dir": str(folder / "model"), "step": 7, **options}
    export_model(engine, job, load_config(job.model), tokenizer_folder=tokenizer, **given)
    return folder / "model"


def case_of(family: str, **training: Any) -> TrainingJob:
    return Case(run_dir="none", data="none", model=config_of(family), training=training).spec().job


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral"])
@pytest.mark.parametrize("shard_bytes", [2**30, 40_000])
def test_the_files_load_anywhere_as_the_very_model(family: str, shard_bytes: int, tmp_path: Path) -> None:
    job = case_of(family)
    module = make_model(job, load_config(job.model))
    folder = export(job, module, tmp_path, shard_bytes=shard_bytes)
    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert loaded.keys() == module.state_dict().keys()
    assert all(torch.equal(each, loaded[key]) for key, each in module.state_dict().items())
    assert json.loads((folder / READY_FILE).read_text()) == {"job": "tiny", "step": 7, "dtype": "float32"}


def test_large_models_come_in_shards_with_an_index(tmp_path: Path) -> None:
    job = case_of("mixtral")
    folder = export(job, make_model(job, load_config(job.model)), tmp_path, shard_bytes=150_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(folder.glob("*.safetensors"))
    assert {each.name for each in files} == set(index.values())
    assert len(files) > 2 and not (folder / "model.safetensors").exists()
    for each in files:
        with safe_open(each, "pt") as opened:  # type: ignore[no-untyped-call]
            assert {name for name, file in index.items() if file == each.name} == set(opened.keys())
    # Experts have the names that other programs know.
    assert any(".experts.0." in name for name in index)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # the adapters' library asks for it
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_adapters_are_merged_as_their_library_merges_them_and_kept_beside(family: str, tmp_path: Path) -> None:
    job = case_of(family, lora=LORA)
    module: Any = make_model(job, load_config(job.model))
    with torch.no_grad():
        for name, each in module.named_parameters():
            if "lora_B" in name:
                each.normal_(0.0, 0.1)
    folder = export(job, module, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    with safe_open(folder / "adapter" / "adapter_model.safetensors", "pt") as opened:  # type: ignore[no-untyped-call]
        assert len(opened.keys()) == sum("lora_" in name for name, _ in module.named_parameters())
    merged = module.merge_and_unload().state_dict()
    for key, each in merged.items():
        torch.testing.assert_close(loaded[key], each, rtol=1e-6, atol=1e-7)


def test_a_failed_export_says_that_the_training_is_whole_and_leaves_no_complete_folder(tmp_path: Path) -> None:
    job = case_of("llama")
    module = make_model(job, load_config(job.model))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / READY_FILE).write_text("{}")
    # Its disk is full once the buffer is written: in the midst of the tensors.
    (tmp_path / "model" / ".model.safetensors.part").symlink_to("/dev/full")
    told = "training ended at step 7 and its checkpoints are untouched.*No space left on device"
    with pytest.raises(ExportError, match=told):
        export(job, module, tmp_path)
    assert not (tmp_path / "model" / READY_FILE).exists()


def test_a_second_export_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    job = case_of("llama")
    module = make_model(job, load_config(job.model))
    folder = export(job, module, tmp_path, shard_bytes=40_000)
    (tmp_path / "tokenizer").rmdir()
    export(job, module, tmp_path)
    assert [each.name for each in folder.glob("*.safetensors*")] == ["model.safetensors"]
    assert AutoModelForCausalLM.from_pretrained(folder)


def test_a_second_export_to_another_store_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    job = case_of("llama")
    module = make_model(job, load_config(job.model))
    place = f"memory://{tmp_path}/model"
    for shard_bytes in (40_000, 2**30):
        export(job, module, tmp_path, model_dir=place, shard_bytes=shard_bytes)
        (tmp_path / "tokenizer").rmdir()
    assert [each for each in files.sizes(place) if "safetensors" in each] == ["model.safetensors"]


def test_long_work_of_the_first_rank_gives_its_result_or_its_failure() -> None:
    assert from_rank0_at_length(lambda: 3) == 3
    with pytest.raises(RuntimeError, match="disk"):
        from_rank0_at_length(_fail)


def test_long_work_of_some_ranks_gives_what_each_of_them_found() -> None:
    assert gathered_at_length(lambda: 3) == [3]
    assert gathered_at_length(None) == [None]


def _fail() -> None:
    raise RuntimeError("no disk")
