"""Published training speeds as runs that the time model can predict; rows are left out only by a written reason.

A row is fitted or scored by the SHA-256 of its identity, so the split never changes and copies of a
row fall on the same side.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from frenzy.core.models.flops import FlopsShape
from frenzy.core.models.trainable import trained_part
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.planning.step_work import model_work
from frenzy.core.planning.throughput import Link, StepWork
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.core.values.utilisation import TRAINER, Software
from frenzy.evaluation.read_fms import Framework
from frenzy.evaluation.settings_of_runs import published_name, shape_of
from tools.accuracy.software import DEEPSPEED, FSDP, FUSED, NANOTRON, TRANSFORMERS

Row = Mapping[str, str]

SPLIT: Final = "fitted when the first 32 bits of the SHA-256 of the row's identity are below one half, else scored"
_GPUS_PER_NODE: Final = 8
# llm-foundry states 1600 Gbit/s for its A100 clusters; eight 400 Gbit/s adapters are usual for H100 nodes.
_NODE_LINK_BYTES_PER_S: Final = {"a100-40": 200e9, "a100-80": 200e9, "a800-80": 200e9, "h100": 400e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One measured run: what was computed, by which plan, on what, and how long a step took.

    question: what a user would have fixed (model, GPUs, global batch); runs that share it compete.
    """

    dataset: str
    identity: str
    question: str
    software: Software
    gpu: GpuType
    link: Link
    work: StepWork
    dp: int
    tp: int
    zero_stage: int
    micro_batch: int
    accumulation: int
    checkpointing: bool
    step_s: float
    offload: bool = False

    @property
    def is_fitted(self) -> bool:
        return int(hashlib.sha256(self.identity.encode()).hexdigest()[:8], 16) < 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRuns:
    """The runs of one data set, and how many rows were left out for which reason."""

    dataset: str
    runs: tuple[PublishedRun, ...]
    left_out: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _LeftOut:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A model of a published table, from its config: head widths add up to the hidden size in all of them."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    num_parameters: int
    num_looked_up: int = 0

    def work(self, sequence_length: int, gradient_bytes: float, num_trainable: int | None = None) -> StepWork:
        trainable = self.num_parameters if num_trainable is None else num_trainable
        return StepWork(
            flops=FlopsShape(
                num_parameters=self.num_parameters,
                num_trainable=trainable,
                num_layers=self.num_layers,
                num_inactive=self.num_looked_up,
                attention_width=self.hidden_size,
            ),
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            sequence_length=sequence_length,
            precision=Precision.BF16,
            weight_bytes=2.0,
            gradient_bytes=gradient_bytes,
        )


def published_runs(folder: Path) -> tuple[PublishedRuns, ...]:
    """The runs of every throughput table in ``folder``; a table that is not there is left out."""
    found = ((folder / name, read) for name, read in _READERS.items())
    return tuple(_read(path, read) for path, read in found if path.is_file())


def _read(path: Path, read: _Reader) -> PublishedRuns:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [read(row) for row in csv.DictReader(file)]
    reasons = Counter(each.reason for each in rows if isinstance(each, _LeftOut))
    return PublishedRuns(
        dataset=path.stem,
        runs=tuple(each for each in rows if isinstance(each, PublishedRun)),
        left_out=tuple(sorted(reasons.items())),
    )


def _link(card: str) -> Link:
    return Link(
        gpus_per_node=_GPUS_PER_NODE,
        inside_bytes_per_s=CATALOGUE[card].gpu.link_bytes_per_s,
        between_bytes_per_s=_NODE_LINK_BYTES_PER_S[card],
    )


# llm-foundry: MPT with FSDP

_MPT_WIDTHS: Final = {
    "125m": (12, 768),
    "350m": (24, 1024),
    "760m": (24, 1536),
    "1b": (24, 2048),
    "3b": (32, 2560),
    "7b": (32, 4096),
    "13b": (40, 5120),
    "30b": (48, 7168),
    "70b": (80, 8192),
}
_MPT_CARDS: Final = {"a100_40gb": "a100-40", "a100_80gb": "a100-80", "h100_80gb": "h100"}
_MPT_VOCABULARY: Final = 50368


def _llm_foundry(row: Row) -> PublishedRun | _LeftOut:
    """One row of llm-foundry's table; FULL_SHARD is ZeRO stage 3, SHARD_GRAD_OP stage 2."""
    if row["Precision"] == "amp_fp8":
        return _LeftOut("fp8, which the trainer does not offer")
    layers, hidden = _MPT_WIDTHS[row["Model"]]
    model = _Model(
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=_MPT_VOCABULARY,
        num_parameters=int(row["NumParams"]),
    )
    card, length, num_gpus = _MPT_CARDS[row["GPU"]], int(row["SeqLen (T)"]), int(row["# GPUs"])
    keys = ("Model", "SeqLen (T)", "# GPUs", "GPU", "MicroBatchSize", "GradAccum", "Precision")
    batch = int(row["GlobalBatchSize"])
    return PublishedRun(
        dataset="llm-foundry",
        identity="|".join(("mpt", *(row[key] for key in keys))),
        question=f"{row['Model']} length {length} on {num_gpus} {card}, batch {batch}",
        software=FSDP,
        gpu=CATALOGUE[card].gpu,
        link=_link(card),
        # mixed precision DEFAULT reduces gradients in fp32, PURE in bf16
        work=replace(model.work(length, 2.0 if row["MP Mode"] == "PURE" else 4.0), reductions=layers),
        dp=num_gpus,
        tp=1,
        zero_stage=3 if row["Sharding Strategy"] == "FULL_SHARD" else 2,
        micro_batch=int(row["MicroBatchSize"]),
        accumulation=int(row["GradAccum"]),
        checkpointing=row["Activation Checkpointing"] == "True",
        step_s=batch * length / float(row["Throughput (T/s)"]),
    )


# nanotron: Llama-shaped models

_NANOTRON_SIZES: Final = {"1B": (16, 2048, 8192), "3B": (28, 3072, 8192), "8B": (32, 4096, 14336)}
_NANOTRON_VOCABULARY: Final = 131072
_NANOTRON_LENGTH: Final = 4096


def _nanotron(row: Row) -> PublishedRun | _LeftOut:
    """One row of nanotron's table: 8 H100 a node; gradients are accumulated and reduced in fp32.

    As its scripts/scaling_benchmarks.py sets them: sequences split in tensor parallel, a head of its own in models
    wider than 10,000 alone. Gradients are reduced tensor by tensor: four matrices and two norms a layer.
    """
    dp, tp = int(row["dp"]), int(row["tp"])
    micro_batch, accumulation, batch = int(row["mbs"]), int(row["grad_acc"]), int(row["gbs"])
    if int(row["pp"]) > 1:
        return _LeftOut("pipeline parallel, which the trainer does not run")
    if tp > _GPUS_PER_NODE:
        return _LeftOut("tensor parallel over nodes, which no plan does")
    if not row["tok_s"]:
        return _LeftOut("crashed or out of memory: no speed")
    if dp * micro_batch * accumulation != batch:
        return _LeftOut("the row's batch sizes contradict each other")
    layers, hidden, width = _NANOTRON_SIZES[row["model"]]
    head = _NANOTRON_VOCABULARY * hidden
    looked_up = head if width > 10_000 else 0
    model = _Model(
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=_NANOTRON_VOCABULARY,
        num_parameters=layers * (4 * hidden**2 + 3 * hidden * width) + head + looked_up,
        num_looked_up=looked_up,
    )
    keys = ("model", "nodes", "mbs", "dp", "tp", "zero")
    return PublishedRun(
        dataset="nanotron",
        identity="|".join(("nt", *(row[key] for key in keys))),
        question=f"{row['model']} on {row['nodes']} nodes, batch {batch}",
        software=NANOTRON,
        gpu=CATALOGUE["h100"].gpu,
        link=_link("h100"),
        work=replace(model.work(_NANOTRON_LENGTH, 4.0), splits_hidden=True, reductions=6 * layers + 2),
        dp=dp,
        tp=tp,
        zero_stage=int(row["zero"]),
        micro_batch=micro_batch,
        accumulation=accumulation,
        checkpointing=False,
        step_s=batch * _NANOTRON_LENGTH / float(row["tok_s"]),
    )


# Hugging Face models, by the shapes of their own configurations


def _fms(row: Row) -> PublishedRun | _LeftOut:
    """One row of fms-acceleration's benchmark: activation checkpointing throughout, FSDP on several GPUs."""
    framework = Framework.of(row["framework_config"])
    if not row["train_samples_per_second"]:
        return _LeftOut("out of memory or failed: no speed")
    if "autogptq" in framework.base:
        return _LeftOut("GPTQ kernels that the trainer does not have")
    name = row["model_name_or_path"]
    shape = shape_of(published_name(name))
    if shape.num_experts:
        return _LeftOut("mixture of experts: routing is outside the time model")
    lora = None
    if row["peft_method"] == "lora":
        lora = LoraSpec(rank=round(float(row["r"])), target_modules=tuple(row["target_modules"].split()))
    storage = WeightStorage.NF4_DOUBLE if framework.base.endswith("-bnb") else WeightStorage.PLAIN
    num_gpus, micro_batch = int(row["num_gpus"]), int(row["per_device_train_batch_size"])
    keys = ("framework_config", "model_name_or_path", "num_gpus", "per_device_train_batch_size", "peft_method")
    return PublishedRun(
        dataset="fms-acceleration",
        identity="|".join(("fms", *(row[key] for key in keys))),
        question="|".join((name, row["framework_config"], row["peft_method"], str(num_gpus), str(micro_batch))),
        software=FUSED if framework.kernels or framework.liger else TRANSFORMERS,
        gpu=CATALOGUE["a100-80"].gpu,
        link=_link("a100-80"),
        work=replace(
            model_work(shape, trained_part(shape, lora), storage, 2048 if "santacoder" in name else 4096),
            # peft's preparation for 4-bit training leads to hidden states in fp32, which FSDP's mixed precision undoes
            stream_bytes=4.0 if framework.base == "baseline-peft-bnb" and num_gpus == 1 else 2.0,
        ),
        dp=num_gpus,
        tp=1,
        zero_stage=3 if num_gpus > 1 else 0,
        micro_batch=micro_batch,
        accumulation=1,
        checkpointing=True,
        step_s=num_gpus * micro_batch / float(row["train_samples_per_second"]),
    )


_FRAMEWORKS: Final = {"torch": TRANSFORMERS, "deepspeed": DEEPSPEED, "trainer": TRAINER}


def _speeds(row: Row) -> PublishedRun | _LeftOut:
    """One row of the table of speeds from several sources."""
    if row["left_out"]:
        return _LeftOut(row["left_out"])
    shape, card = shape_of(row["model"]), row["gpu"]
    lora = None
    if row["lora_rank"]:
        lora = LoraSpec(rank=int(row["lora_rank"]), target_modules=tuple(row["lora_targets"].split()))
    storage = WeightStorage(row.get("quantization") or "plain")
    dp, micro_batch, accumulation = (int(row[key]) for key in ("num_gpus", "micro_batch", "accumulation"))
    batch, length = dp * micro_batch * accumulation, int(row["sequence_length"])
    source = row["source"].split()[0]
    settings = [key for key in row if key not in {"source", "speed", "unit", "left_out"}]
    return PublishedRun(
        dataset="training-speed",
        identity="|".join((source, *(row[key] for key in settings))),
        question=f"{source} {row['model']} {storage} {row['lora_rank']} length {length} on {dp} {card}, batch {batch}",
        software=_FRAMEWORKS[row["framework"]],
        gpu=CATALOGUE[card].gpu,
        link=_link(card),
        work=model_work(shape, trained_part(shape, lora), storage, length),
        dp=dp,
        tp=1,
        zero_stage=int(row["zero_stage"] or 0),
        micro_batch=micro_batch,
        accumulation=accumulation,
        checkpointing=row["checkpointing"] == "true",
        offload=row["offload_optimizer"] == "true",
        step_s=float(row["speed"]) if row["unit"] == "s/step" else batch / float(row["speed"]),
    )


_Reader = Callable[[Row], PublishedRun | _LeftOut]
_READERS: Final[Mapping[str, _Reader]] = {
    "llmfoundry_mpt_fits_configs.csv": _llm_foundry,
    "nanotron_ultrascale_5d_bench.csv": _nanotron,
    "fms_a100_80gb.csv": _fms,
    "fms_a100_80gb_liger.csv": _fms,
    "speed/training_speed.csv": _speeds,
    "speed/trainer_h100.csv": _speeds,
}


def all_runs(sets: tuple[PublishedRuns, ...]) -> Iterator[PublishedRun]:
    """The runs of all data sets, in their order."""
    for each in sets:
        yield from each.runs
