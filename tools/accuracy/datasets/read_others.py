"""Readers of torchtune's, peft's, ms-swift's and Qwen's tables: some settings of the runs are not recorded."""

from __future__ import annotations

import json
import re
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.torch_kernels import TorchOptimizer
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import LoraSpec
from frenzy.core.values.units import GIB
from frenzy.evaluation.published import Cells, Grade, Outcome, PublishedRow, UnknownRow
from frenzy.evaluation.settings_of_runs import RunSetting, torch_run
from tools.accuracy.datasets.run_or_refusal import run_or_refusal

TORCHTUNE_COLUMNS: Final = ("Finetuning Method", "Runnable On", "Peak Memory per GPU")
PEFT_COLUMNS: Final = ("accelerator_memory_max", "cfg_model_id", "peft_config")
SWIFT_COLUMNS: Final = ("Model Type [LoRA]", "GPU Memory (GiB)", "Max Length")
QWEN_COLUMNS: Final = ("model", "method", "seq_len", "mem_gb_total")

_TORCHTUNE_CARDS: Final = {"4090": "rtx-4090", "A6000": "rtx-a6000", "A100": "a100-80"}
_QWEN_TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def read_torchtune_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """A row of torchtune's README: lengths are not recorded, and several savings are combined."""
    found = re.match(r"([\d.]+) GiB", cells["Peak Memory per GPU"])
    card = cells["Runnable On"].partition("x ")[2]
    what = cells["Technique"] or f"{cells['Model']} {cells['Finetuning Method']}"
    return PublishedRow(
        dataset="torchtune",
        number=number,
        label=f"{what} {cells['Runnable On']}".strip(),
        grade=Grade.A_MINUS,
        framework="torchtune",
        group=cells["table"],
        outcome=Outcome.RAN,
        capacity_bytes=CATALOGUE[_TORCHTUNE_CARDS.get(card, "a100-80")].gpu.memory_bytes,
        refusal="neither the length of the sequences nor the batch of the run is recorded",
        peak_bytes=round(float(found[1]) * GIB) if found else None,
    )


def read_peft_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """A row of peft's comparison of methods: Llama 3.2 3B, batches padded to at most 768 tokens."""
    adapters = json.loads(cells["peft_config"]) if cells["peft_config"] else {}
    run, refusal = run_or_refusal(lambda: torch_run(_peft_setting(cells, adapters), calibration))
    return PublishedRow(
        dataset="peft",
        number=number,
        label=cells["file"].rsplit("/", 1)[-1].removesuffix(".json"),
        grade=Grade.B,
        framework="peft, own loop",
        group=str(adapters.get("peft_type", "full")),
        outcome=Outcome.RAN,
        capacity_bytes=CATALOGUE["l40s"].gpu.memory_bytes,
        run=run,
        refusal=refusal,
        reserved_bytes=int(float(cells["accelerator_memory_max"])),
    )


def _peft_setting(cells: Cells, adapters: dict[str, object]) -> RunSetting:
    if "Llama-3.2-3B" not in cells["cfg_model_id"]:
        raise UnknownRow("not a language model")
    if cells["cfg_optimizer_type"] != "AdamW":
        raise UnknownRow(f"optimizer {cells['cfg_optimizer_type']!r} is not offered")
    lora = None
    if adapters:
        if adapters.get("peft_type") != "LORA" or adapters.get("use_dora") or adapters.get("use_bdlora"):
            raise UnknownRow("a method other than LoRA, which the trainer does not offer")
        targets = adapters.get("target_modules")
        rank = adapters.get("r")
        if not isinstance(targets, list) or not isinstance(rank, int):
            raise UnknownRow("rank or targets of the adapters are not recorded")
        lora = LoraSpec(rank=rank, target_modules=tuple(sorted(targets)))
    return RunSetting(
        model="Llama-3.2-3B",
        micro_batch=int(cells["cfg_batch_size"]),
        sequence_length=int(cells["cfg_max_seq_length"]),
        lora=lora,
        checkpointing=cells["cfg_use_gc"] == "True",
    )


def read_swift_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """A row of ms-swift's tables: the driver's figure on an A100, batch 1, lengths up to the limit."""
    model = cells["Model Type [LoRA]"] or cells["Model Type [FULL]"]
    memory = cells["GPU Memory (GiB)"]
    return PublishedRow(
        dataset="ms-swift",
        number=number,
        label=f"{model or cells['model_type']} {cells['table']} {cells['Max Length']}",
        grade=Grade.C,
        framework="ms-swift",
        group=cells["table"],
        outcome=Outcome.RAN,
        capacity_bytes=CATALOGUE["a100-80"].gpu.memory_bytes,
        refusal="how long the sequences really were is not recorded",
        reserved_bytes=round(float(memory) * GIB) if re.fullmatch(r"[\d.]+", memory or "") else None,
    )


def read_qwen_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """A row of Qwen's profile: the driver's figure summed over the GPUs of an A100 machine, batch 1."""
    gpus = int(cells["nodes"]) * int(cells["gpus_per_node"])
    memory = cells["mem_gb_total"]
    run, refusal = run_or_refusal(lambda: torch_run(_qwen_setting(cells, gpus), calibration))
    ran = memory not in {"", "-"}
    return PublishedRow(
        dataset="qwen",
        number=number,
        label=f"{cells['model']} {cells['method']} s{cells['seq_len']} x{gpus}",
        grade=Grade.C,
        framework="Hugging Face Trainer",
        group=cells["method"],
        outcome=Outcome.RAN if ran else Outcome.OUT_OF_MEMORY,
        capacity_bytes=CATALOGUE["a100-80"].gpu.memory_bytes,
        run=run,
        refusal=refusal,
        reserved_bytes=round(float(memory) * GIB / gpus) if ran else None,
    )


def _qwen_setting(cells: Cells, gpus: int) -> RunSetting:
    method = cells["method"]
    if "(emb)" in method or gpus > 1:
        raise UnknownRow("trained embeddings, or a sharding that is not recorded")
    if cells["model"] == "Qwen-72B" or method not in {"LoRA", "Q-LoRA"}:
        raise UnknownRow("the layout of the weights is not recorded")
    lora = LoraSpec(rank=64, target_modules=_QWEN_TARGETS, dropout=0.05)
    return RunSetting(
        model=cells["model"],
        micro_batch=1,
        sequence_length=int(cells["seq_len"]),
        lora=lora,
        storage=WeightStorage.GPTQ if method == "Q-LoRA" else WeightStorage.PLAIN,
        autocast=True,
        master_fp32=False,
        checkpointing=True,
        optimizer=TorchOptimizer.ADAMW,
    )
