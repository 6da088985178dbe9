"""The finished model in the run directory: safetensors, config, tokenizer, loadable anywhere.

Written shard by shard and tensor by tensor from what the ranks hold: there is never a second model,
and no rank waits in one exchange for what another does. With adapters the merged model is written, and the
adapters alone in its folder ``adapter``.
"""

from __future__ import annotations

import copy
import fnmatch
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed

from frenzy.core.values.job import TrainingJob
from frenzy.core.values.units import GIB
from frenzy.trainer import files
from frenzy.trainer.collective import from_rank0, from_rank0_at_length
from frenzy.trainer.heartbeats import beat
from frenzy.trainer.model.export_tensors import ExportGroup, export_groups
from frenzy.trainer.outcome import one_line
from frenzy.trainer.tensor_file import TensorWriter

READY_FILE: Final = "frenzy_model.json"
# As large as hubs like a file to be; also the room that a remote run directory takes on local disk.
SHARD_BYTES: Final = 4 * GIB


class ExportError(RuntimeError):
    """The model is trained, and could not be written."""


def export_model(
    engine: Any,
    job: TrainingJob,
    config: Any,
    *,
    tokenizer_folder: Path,
    model_dir: str,
    step: int,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Put the model at ``model_dir``. Collective. Raises ExportError, on all ranks.

    ``frenzy_model.json`` comes last: a folder that has it is complete.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="frenzy-model-") as scratch:
            export = _Export(engine, model_dir, Path(scratch))
            from_rank0(export.begin)
            names = export.write_weights(export_groups(engine.module, export.shapes), shard_bytes)
            adapters = export.adapters() if job.training.lora is not None else None
            from_rank0_at_length(lambda: export.finish(job, config, tokenizer_folder, step, names, adapters))
    except Exception as error:
        raise ExportError(
            f"the training ended at step {step} and its checkpoints are untouched, but the model could not be "
            f"exported: {one_line(error)}; the next attempt has only this left to do"
        ) from error


@dataclass(frozen=True, slots=True)
class _Shard:
    name: str
    groups: tuple[ExportGroup, ...]


def shards(groups: Sequence[ExportGroup], shard_bytes: int) -> list[_Shard]:
    """``groups`` in files of at most ``shard_bytes``, or one group, named as transformers names them."""
    parts: list[list[ExportGroup]] = [[]]
    room = shard_bytes
    for each in groups:
        if parts[-1] and each.num_bytes > room:
            parts.append([])
            room = shard_bytes
        parts[-1].append(each)
        room -= each.num_bytes
    if len(parts) == 1:
        return [_Shard("model.safetensors", tuple(parts[0]))]
    return [
        _Shard(f"model-{number:05d}-of-{len(parts):05d}.safetensors", tuple(part))
        for number, part in enumerate(parts, start=1)
    ]


class _Export:
    """One export. Its methods without a rank in their words are called on rank 0 alone."""

    def __init__(self, engine: Any, model_dir: str, scratch: Path) -> None:
        self._engine, self._model_dir, self._scratch = engine, model_dir, scratch
        self._local = files.local_path(model_dir)
        self._writer: TensorWriter | None = None
        self._names = {id(each): name for name, each in engine.module.named_parameters()}
        # With tensor parallelism the parameters are cut; DeepSpeed puts the whole together on rank 0.
        self._split = engine._consolidated_16bit_state_dict() if engine.autotp_size() > 1 else None
        self.shapes: dict[str, tuple[int, ...]] = from_rank0(
            lambda: {name: tuple(each.shape) for name, each in (self._split or {}).items()}
        )
        if hasattr(engine.optimizer, "checkpoint_event_prologue"):
            engine.optimizer.checkpoint_event_prologue()

    def begin(self) -> None:
        """A folder with weights of an earlier export is complete no longer."""
        files.remove_file(f"{self._model_dir}/{READY_FILE}")
        if self._local is not None:
            self._local.mkdir(parents=True, exist_ok=True)
        for old in fnmatch.filter(files.sizes(self._model_dir), "*model*.safetensors*"):
            files.remove_file(f"{self._model_dir}/{old}")

    def write_weights(self, groups: Sequence[ExportGroup], shard_bytes: int) -> dict[str, str]:
        """All shards; the file of each tensor. On all ranks."""
        found: dict[str, str] = {}
        for shard in shards(groups, shard_bytes):
            self._write_shard(shard)
            found.update({name: shard.name for group in shard.groups for name in group.forms})
        return found

    def _write_shard(self, shard: _Shard) -> None:
        file = (self._local or self._scratch) / f".{shard.name}.part"
        from_rank0_at_length(lambda: self._open(file, shard))
        for group in shard.groups:
            with self._gathered(group.parameters):
                from_rank0_at_length(partial(self._write_group, group))
            beat("saving the finished model")
        from_rank0_at_length(lambda: self._publish(file, shard.name))

    def _open(self, file: Path, shard: _Shard) -> None:
        forms = [(name, *form) for group in shard.groups for name, form in group.forms.items()]
        self._writer = TensorWriter(file, forms)

    def _write_group(self, group: ExportGroup) -> None:
        assert self._writer is not None
        with torch.no_grad():
            for each in group.values(self._whole):
                self._writer.write(each)

    def _publish(self, file: Path, name: str) -> None:
        assert self._writer is not None
        self._writer.close()
        if self._local is not None:
            file.replace(self._local / name)
            return
        files.upload_file(file, f"{self._model_dir}/{name}")
        file.unlink()

    def _gathered(self, parameters: Sequence[Any]) -> AbstractContextManager[Any]:
        import deepspeed

        sliced = [each for each in parameters if hasattr(each, "ds_id")]
        return deepspeed.zero.GatheredParameters(sliced) if sliced else nullcontext()

    def _whole(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """A gathered parameter. On rank 0."""
        return parameter.data if self._split is None else self._split[self._names[id(parameter)]]

    def adapters(self) -> dict[str, torch.Tensor] | None:
        """The adapters' weights on the host. On all ranks; None on all but rank 0."""
        parts = [(name, each) for name, each in self._engine.module.named_parameters() if ".lora_" in name]
        with self._gathered([each for _, each in parts]):
            if distributed.get_rank() != 0:
                return None
            return {name: self._whole(each).detach().cpu().clone() for name, each in parts}

    def finish(
        self,
        job: TrainingJob,
        config: Any,
        tokenizer_folder: Path,
        step: int,
        names: dict[str, str],
        adapters: dict[str, torch.Tensor] | None,
    ) -> None:
        """What is small: index, config, adapters, tokenizer; the mark of completeness last."""
        folder, module = self._scratch / "small", self._engine.module
        folder.mkdir()
        if adapters is not None:
            module.save_pretrained(folder / "adapter", state_dict=adapters, save_embedding_layers=False)
        model = module.get_base_model() if adapters is not None else module
        _save_config(model, config, folder)
        if len(set(names.values())) > 1:
            index = {"metadata": {}, "weight_map": names}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
        for each in _plain_files(tokenizer_folder):
            shutil.copyfile(each, folder / each.name)
        marker = {"job": job.name, "step": step, "dtype": str(model.dtype).removeprefix("torch.")}
        (folder / READY_FILE).write_text(json.dumps(marker))
        files.publish_folder(folder, self._model_dir, last=READY_FILE)


def _save_config(model: Any, config: Any, folder: Path) -> None:
    """As ``save_pretrained`` does beside the weights."""
    saved = copy.deepcopy(config)
    saved.use_cache, saved.dtype = True, str(model.dtype).removeprefix("torch.")
    saved.architectures = [type(model).__name__]
    saved.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def _plain_files(folder: Path) -> Iterator[Path]:
    return (each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
