"""From what a data set records of a run to what the memory model needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.model_config import resolve_model_config
from frenzy.core.memory.activation_coefficients import (
    ActivationCoefficients,
    ActivationSetting,
    AdapterSetting,
    Attention,
    Loss,
)
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.torch_kernels import Sharding, TorchOptimizer, TorchRun
from frenzy.core.models.shape import ModelShape, model_shape
from frenzy.core.models.trainable import trained_part
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import LoraSpec, ModelSpec, Precision
from frenzy.evaluation.cells import text
from frenzy.evaluation.published import Cells, UnknownRow

_MODELS_FILE: Final = Path(__file__).with_name("models.json")
# Repackaged weights and tuned versions have the shape of what they are made from.
_PREFIXES: Final = ("meta-",)
_SUFFIXES: Final = re.compile(r"-(gptq|awq|bnb-4bit|hf|instruct|chat|base|fp16|bf16)$")


@cache
def published_models() -> Mapping[str, Mapping[str, Any]]:
    """Configs of the models in the data sets, by name."""
    models: Mapping[str, Mapping[str, Any]] = json.loads(_MODELS_FILE.read_text(encoding="utf-8"))
    return models


def published_name(name: str) -> str:
    """The name under which the configuration is kept; ``name`` itself where it is a folder, else its last part."""
    if Path(name, "config.json").is_file():
        return name
    last = name.rstrip("/").rsplit("/", 1)[-1]
    plain = {_bare(each): each for each in published_models()}
    exact = {each.lower(): each for each in published_models()}
    return exact.get(last.lower()) or plain.get(_bare(last)) or last


def recorded_model(cells: Cells, column: str) -> str:
    """The ``published_name`` of the cell's model. Raises UnknownRow, with the text of the cell, for an unknown one."""
    written = text(cells, column)
    name = published_name(written)
    if name in published_models() or Path(name, "config.json").is_file():
        return name
    raise UnknownRow(f"{column} {written!r}: its configuration is not at hand; name a folder with its config.json")


def _bare(name: str) -> str:
    found = name.lower()
    for prefix in _PREFIXES:
        found = found.removeprefix(prefix)
    while _SUFFIXES.search(found):
        found = _SUFFIXES.sub("", found)
    return found


@cache
def shape_of(model: str) -> ModelShape:
    """The shape of a published model. Raises UnknownRow when it is not known or not supported."""
    config = published_models().get(model) or _own_config(model)
    if config is None:
        raise UnknownRow(f"the configuration of {model} is not at hand: name a folder with its config.json")
    try:
        return model_shape(config)
    except PermanentError as error:
        raise UnknownRow(f"{model}: {error.reason.detail}") from error


def _own_config(folder: str) -> Mapping[str, Any] | None:
    """The configuration in a folder of the user's, with the library's defaults; None where there is no such folder."""
    if not Path(folder, "config.json").is_file():
        return None
    try:
        return resolve_model_config(ModelSpec(path=folder))
    except PermanentError as error:
        raise UnknownRow(f"{folder}: {error.reason.detail}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """One published run in the terms of its source.

    autocast: mixed precision by autocast. hidden_fp32: hidden states travel in fp32 between
    16-bit maps, because norms do (what peft's preparation for k-bit training leads to).
    master_fp32: parameters, gradients and states in fp32, computed in 16 bits. in_place_loss: a
    cross-entropy kernel that writes its gradient over the logits. fused_linear_loss: head and loss
    in one kernel, chunk by chunk. accumulation: micro-batches to an update. computed_like: a family whose
    layers take as much, where the run's own code is not that of the release that was traced.
    """

    model: str
    micro_batch: int
    sequence_length: int
    lora: LoraSpec | None = None
    storage: WeightStorage = WeightStorage.PLAIN
    autocast: bool = False
    hidden_fp32: bool = False
    master_fp32: bool = False
    checkpointing: bool = False
    attention: Attention = Attention.FLASH_2
    loss: Loss = Loss.TORCH
    optimizer: TorchOptimizer = TorchOptimizer.ADAMW
    adapter_bytes: int = 4
    sharding: Sharding = Sharding.NONE
    num_gpus: int = 1
    gathered_layers: int = 1
    reentrant: bool = True
    keeps_cache: bool = False
    in_place_loss: bool = False
    fused_norms: bool = False
    fused_linear_loss: bool = False
    accumulation: int = 1
    hopper: bool = False
    computed_like: str | None = None


def torch_run(setting: RunSetting, calibration: Calibration) -> TorchRun:
    """What the memory model needs. Raises UnknownRow when the family or setting has no coefficients."""
    if min(setting.micro_batch, setting.sequence_length, setting.num_gpus) < 1:
        sizes = f"batch {setting.micro_batch}, length {setting.sequence_length}, {setting.num_gpus} GPUs"
        raise ValueError(f"{sizes}: each must be at least 1")
    shape = shape_of(setting.model)
    activation = _activation_setting(setting, shape)
    traced = replace(shape, family=setting.computed_like or shape.family)
    coefficients = _coefficients(traced, activation, calibration)
    if coefficients is None:
        raise UnknownRow(f"no coefficients of {traced.family} for {_words(activation)}")
    weight_bytes = 4 if setting.master_fp32 else 2
    return TorchRun(
        shape=shape,
        trained=trained_part(shape, setting.lora),
        coefficients=coefficients,
        micro_batch=setting.micro_batch,
        sequence_length=setting.sequence_length,
        storage=setting.storage,
        layer_bytes=weight_bytes,
        outside_bytes=weight_bytes,
        trained_bytes=setting.adapter_bytes if setting.lora else weight_bytes,
        optimizer=setting.optimizer,
        sharding=setting.sharding,
        num_gpus=setting.num_gpus,
        gathered_layers=setting.gathered_layers,
        adapter_rank=setting.lora.rank if setting.lora else 0,
        autocast=setting.autocast,
        reentrant=setting.reentrant,
        cached_key_values=_cached_bytes(setting, shape),
        hopper=setting.hopper,
        saved_loss_bytes=_log_probability_bytes(setting, shape) if setting.in_place_loss else 0,
        fused_norms=setting.fused_norms,
        fused_linear_loss=setting.fused_linear_loss,
        accumulation=setting.accumulation,
    )


def _coefficients(
    shape: ModelShape, setting: ActivationSetting, calibration: Calibration
) -> ActivationCoefficients | None:
    """Those of the setting, or of the model without its own dropout, where adapters were traced without.

    Its masks take a byte for each hidden element outside the layers.
    """
    plain = replace(shape, embedding_dropout=0.0, attention_dropout=0.0, residual_dropout=0.0)
    shapes = [shape] if setting.adapters is None else [shape, plain]
    found = (calibration.activation(each, setting) for each in shapes)
    return next((each for each in found if each is not None), None)


def _activation_setting(setting: RunSetting, shape: ModelShape) -> ActivationSetting:
    precision = Precision.AUTOCAST_BF16 if setting.autocast else Precision.BF16
    adapters = None
    if setting.lora is not None:
        adapted = {
            each.name.rsplit(".lora", 1)[0].rsplit(".", 1)[-1] for each in trained_part(shape, setting.lora).layer
        }
        frozen = Precision.AUTOCAST_BF16 if setting.hidden_fp32 else Precision.BF16
        adapters = AdapterSetting(
            targets=tuple(sorted(adapted)),
            dropout=setting.lora.dropout > 0,
            frozen=frozen,
            answers_in_kind=setting.hidden_fp32,
        )
        if not setting.autocast and setting.adapter_bytes == 4:
            precision = Precision.FP32
    return ActivationSetting(
        precision=precision,
        checkpointing=setting.checkpointing,
        kind=DeviceKind.CUDA,
        attention=setting.attention,
        loss=setting.loss,
        adapters=adapters,
    )


def _words(setting: ActivationSetting) -> str:
    adapters = f", adapters on {' '.join(setting.adapters.targets)}" if setting.adapters else ""
    checkpointing = ", checkpointing" if setting.checkpointing else ""
    return f"{setting.precision}, {setting.attention}{checkpointing}{adapters}"


def _cached_bytes(setting: RunSetting, shape: ModelShape) -> int:
    """A model with one map for queries, keys and values caches views of its whole output."""
    if not setting.keeps_cache:
        return 0
    stream_bytes = 4 if setting.autocast else 2
    return stream_bytes * (shape.query_width + 2 * shape.key_value_width)


def _log_probability_bytes(setting: RunSetting, shape: ModelShape) -> int:
    """Bytes of a log-probability: in the logits' format where the family does not compute its loss in fp32."""
    return 2 if shape.family == "gpt_bigcode" and not setting.autocast else 4
