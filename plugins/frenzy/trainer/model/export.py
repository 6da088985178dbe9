"""The finished model in the run directory: safetensors, config, tokenizer, loadable anywhere.

With adapters the merged model is written, and the adapters alone in its folder ``adapter``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed

from frenzy.core.values.job import TrainingJob
from frenzy.trainer import files
from frenzy.trainer.model import four_bit
from frenzy.trainer.model.loading import make_model

READY_FILE: Final = "frenzy_model.json"


def export_model(
    engine: Any, job: TrainingJob, config: Any, *, tokenizer_folder: Path, model_dir: str, step: int
) -> None:
    """Gather the weights on rank 0 and put the model at ``model_dir``. Collective.

    ``frenzy_model.json`` comes last: a folder that has it is complete.
    """
    weights = _gathered_weights(engine)
    if distributed.get_rank() == 0:
        assert weights is not None
        with tempfile.TemporaryDirectory(prefix="frenzy-model-") as scratch:
            folder = Path(scratch)
            _save(weights, job, config, folder)
            _add_tokenizer(tokenizer_folder, folder)
            marker = {"job": job.name, "step": step, "dtype": str(_float_dtype(weights)).removeprefix("torch.")}
            (folder / READY_FILE).write_text(json.dumps(marker))
            files.remove_file(f"{model_dir}/{READY_FILE}")
            files.publish_folder(folder, model_dir, last=READY_FILE)
    distributed.barrier()


def _gathered_weights(engine: Any) -> dict[str, torch.Tensor] | None:
    """All weights whole, 4-bit ones in the format they are computed in; None on all ranks but 0."""
    gathered = _gathered_state(engine)
    if gathered is None or distributed.get_rank() != 0:
        return None
    return four_bit.restored(engine.module, gathered)


def _gathered_state(engine: Any) -> dict[str, torch.Tensor] | None:
    if engine.zero_optimization_stage() == 3:
        gathered: dict[str, torch.Tensor] | None = engine._zero3_consolidated_16bit_state_dict()
        return gathered
    if engine.autotp_size() > 1:
        gathered = engine._replace_module_consolidated_state_dict()
        return gathered
    return engine.module.state_dict() if distributed.get_rank() == 0 else None


def _save(weights: dict[str, torch.Tensor], job: TrainingJob, config: Any, folder: Path) -> None:
    model: Any = make_model(job, config, weights=weights)
    if job.training.lora is not None:
        model.save_pretrained(folder / "adapter")
        model = model.merge_and_unload()
    model.config.use_cache = True
    model.save_pretrained(folder)


def _add_tokenizer(tokenizer_folder: Path, folder: Path) -> None:
    for each in tokenizer_folder.iterdir():
        if each.is_file() and not each.name.startswith("."):
            shutil.copyfile(each, folder / each.name)


def _float_dtype(weights: dict[str, torch.Tensor]) -> torch.dtype:
    return next(each.dtype for each in weights.values() if each.is_floating_point())
