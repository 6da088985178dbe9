"""8B on one card, from weights on disk: 4-bit with adapters, and all weights with 8-bit states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from frenzy.trainer.launch.child import call_in_child
from tools.gpu_proof.attempts import Bench, shape_of
from tools.gpu_proof.figure_lines import Found
from tools.gpu_proof.parts.attempt_figures import figures_of, host_memory, saving, speed_of, start
from tools.gpu_proof.proof import Case, Part

# Bytes of a checkpoint for each trained weight: fp32 master, two moments in fp32, the weight itself.
_STATE_BYTES: Final = 16
_WEIGHT_BYTES: Final = 2
_SHARD_ELEMENTS: Final = 2**31
_NOISE_ELEMENTS: Final = 2**20
_ADAPTERS: Final = {"lora": {"rank": 16, "quantization": "nf4"}}
_STATES: Final = {"optimizer": "adamw-8bit"}


def _cases(bench: Bench) -> Iterator[Case]:
    yield Case(name="QLoRA", run=partial(_run, _ADAPTERS))
    yield Case(name="adamw-8bit", run=partial(_run, _STATES))


def _run(training: Mapping[str, Any], bench: Bench, folder: Path) -> Iterator[Found]:
    scale, config = bench.scale, dict(bench.scale.eight)
    job = bench.job(
        {"path": str(folder / "weights"), "tokenizer": "byte"},
        steps=scale.steps,
        sequence_length=scale.sequence_length,
        **training,
    )
    plan = bench.best_plan(job, config)
    saved = _has_disk_for(bench, config, adapters="lora" in training)
    _write_weights(config, folder)
    ended = bench.run(job, plan, folder / "run", rehearsal=not saved, fresh=True)
    yield from figures_of(ended)
    yield from speed_of(ended, bench, config)
    yield host_memory(ended)
    yield start(ended)
    if saved:
        yield from saving(ended, scale.steps)
    else:
        yield Found(name="checkpoint", value=None, unit="GiB", detail="more than the disk that the proof may use")


def _has_disk_for(bench: Bench, config: Mapping[str, Any], *, adapters: bool) -> bool:
    """Whether weights, checkpoint and export stay below the limit, and below nine tenths of what is free."""
    count = shape_of(config).num_parameters
    needed = count * (_WEIGHT_BYTES + (_WEIGHT_BYTES if adapters else _STATE_BYTES + _WEIGHT_BYTES))
    return needed < min(bench.scale.disk_bytes, 0.9 * shutil.disk_usage(bench.folder).free)


def _write_weights(config: Mapping[str, Any], folder: Path) -> None:
    """In a child, whose memory goes with it. Raises RuntimeError with what it left."""
    folder.mkdir(parents=True, exist_ok=True)
    work = partial(write_noise, dict(config), folder / "weights")
    found = call_in_child(work, folder / "weights.pickle", log_file=folder / "weights.log")
    if found is not None:
        raise RuntimeError(found.detail)


def write_noise(config: dict[str, Any], folder: Path) -> None:
    """A model's folder as the hub's are, in bf16 shards of 4 GiB: noise, since nobody reads what it says.

    Of the usual size for a first start (0.02), and one stretch of it over and over.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True)
    full = AutoConfig.for_model(**config, dtype="bfloat16")
    full.save_pretrained(folder)
    with torch.device("meta"):
        weights = dict(AutoModelForCausalLM.from_config(full).named_parameters())
    noise = torch.randn(_NOISE_ELEMENTS).mul_(0.02).bfloat16()
    shards = list(_shards({name: each.numel() for name, each in weights.items()}))
    files = {f"model-{number:05d}-of-{len(shards):05d}.safetensors": each for number, each in enumerate(shards, 1)}
    for file, names in files.items():
        tensors = {name: _filled(noise, weights[name].shape) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    total = _WEIGHT_BYTES * sum(each.numel() for each in weights.values())
    index = {name: file for file, names in files.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}), encoding="utf-8"
    )


def _shards(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Names in their order, cut where a shard would grow past its size."""
    names, count = list[str](), 0
    for name, size in sizes.items():
        if names and count + size > _SHARD_ELEMENTS:
            yield names
            names, count = [], 0
        names.append(name)
        count += size
    yield names


def _filled(noise: Any, shape: Any) -> Any:
    return noise.repeat(-(-shape.numel() // len(noise)))[: shape.numel()].view(shape)


PART: Final = Part(
    name="large model",
    title="8B from weights on disk: QLoRA, and all weights with 8-bit states; start, host memory, checkpoint, speed",
    share=0.15,
    case_s=300.0,
    cases=_cases,
)
