"""Readers of LitGPT's two tables: its own models, bf16 throughout, peak of PyTorch's allocator, lengths vary."""

from __future__ import annotations

import re
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import LoraSpec
from frenzy.evaluation.published import Cells, Grade, Outcome, PublishedRow, UnknownRow
from frenzy.evaluation.settings_of_runs import RunSetting, torch_run
from tools.accuracy.datasets.run_or_refusal import run_or_refusal

HUB_COLUMNS: Final = ("Config", "Max seq length", "Micro batch size", "Peak memory")
TABLE_COLUMNS: Final = ("Microbatch size", "Max GPU RAM", "Quantization")

_HUB_MODELS: Final = {
    "gemma2-2b": "gemma-2-2b",
    "gemma2b": "gemma-2-2b",
    "gemma2-9b": "gemma-2-9b",
    "llama-2-7b": "Llama-2-7b-hf",
    "llama-3-8b": "Llama-3-8B",
    "llama-3.1-8b": "Llama-3.1-8B",
    "llama-3.2-1b": "Llama-3.2-1B",
    "llama-3.2-3b": "Llama-3.2-3B",
    "mistral-7b": "Mistral-7B-v0.1",
    "mistral-7b-v0.2": "Mistral-7B-v0.1",
    "phi-3": "Phi-3-mini-4k-instruct",
    "tiny-llama": "TinyLlama-1.1B",
}
_TABLE_MODELS: Final = {
    "1.3 B phi-1.5": "phi-1.5",
    "3 B StableLM Alpha": "stablelm-base-alpha-3b",
    "7 B Llama 2": "Llama-2-7b-hf",
    "13 B Llama 2": "Llama-2-13b-hf",
    "40 B Falcon": "falcon-40b",
}
_STORAGE: Final = {
    "": WeightStorage.PLAIN,
    "None": WeightStorage.PLAIN,
    "bnb.nf4": WeightStorage.NF4,
    "bnb.nf4-dq": WeightStorage.NF4_DOUBLE,
}
# Queries and values are adapted by default; rank 32 in the hub of configurations, 8 in the tutorial.
_TARGETS: Final = (
    "self_attn.q_proj",
    "self_attn.v_proj",
    "attention.query_key_value",
    "self_attn.qkv_proj",
)
_HUB_RANK, _TABLE_RANK = 32, 8
# The longest of Alpaca's examples in Llama's tokens, which the tutorial's runs see first.
_ALPACA_LONGEST: Final = 1304


def read_hub_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """A row of the hub of configurations (A10G, sequences of at most 512 tokens).

    Rows for four cards repeat those for one to the digit: one card was used.
    """
    folder, _, kind = cells["Config"].partition("/")
    model = _HUB_MODELS.get(folder, folder)
    method = kind.removesuffix(".yaml")
    peak = _peak(cells["Peak memory"])
    run, refusal = run_or_refusal(lambda: torch_run(_hub_setting(cells, model, method), calibration))
    return PublishedRow(
        dataset="litgpt-hub",
        number=number,
        label=f"{cells['Config']} b{cells['Micro batch size']} {cells['Machine']}",
        grade=Grade.A_MINUS,
        framework="LitGPT",
        group=method,
        outcome=Outcome.RAN if peak else Outcome.OUT_OF_MEMORY,
        capacity_bytes=CATALOGUE["a10g"].gpu.memory_bytes,
        run=run,
        refusal=refusal,
        peak_bytes=peak,
    )


def _hub_setting(cells: Cells, model: str, method: str) -> RunSetting:
    if method == "full":
        raise UnknownRow("the optimizer of the full runs is not recorded")
    return RunSetting(
        model=model,
        micro_batch=int(cells["Micro batch size"]),
        sequence_length=int(cells["Max seq length"]),
        lora=LoraSpec(rank=_HUB_RANK, target_modules=_TARGETS, dropout=0.05),
        storage=WeightStorage.NF4 if method == "qlora" else WeightStorage.PLAIN,
        adapter_bytes=2,
    )


def read_table_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """A row of the tutorial's resource tables (A100 40 GB, instructions of up to 1,304 tokens)."""
    name = f"{cells['Size']} {cells['Model']}"
    peak = _peak(cells["Max GPU RAM"])
    run, refusal = run_or_refusal(lambda: torch_run(_table_setting(cells, name), calibration))
    ran_out = cells["Max GPU RAM"] == "OOM"
    if not ran_out and peak is None:
        run, refusal = None, f"not measured: {cells['Max GPU RAM']}"
    return PublishedRow(
        dataset="litgpt-tables",
        number=number,
        label=f"{name} {cells['table']} {cells['Quantization']} b{cells['Microbatch size']}",
        grade=Grade.A_MINUS,
        framework="LitGPT",
        group=cells["Quantization"] or "none",
        outcome=Outcome.OUT_OF_MEMORY if ran_out else Outcome.RAN,
        capacity_bytes=CATALOGUE["a100-40"].gpu.memory_bytes,
        run=run,
        refusal=refusal,
        peak_bytes=peak,
    )


def _table_setting(cells: Cells, name: str) -> RunSetting:
    table = cells["table"]
    if "Inference" in table:
        raise UnknownRow("inference, not training")
    if "Adapter" in table:
        raise UnknownRow("LLaMA-Adapter, which the trainer does not offer")
    if "Multiple" in table:
        raise UnknownRow("the sharding of the run is not recorded")
    if name not in _TABLE_MODELS:
        raise UnknownRow(f"the configuration of {name} is not at hand")
    return RunSetting(
        model=_TABLE_MODELS[name],
        micro_batch=int(cells["Microbatch size"]),
        sequence_length=_ALPACA_LONGEST,
        lora=LoraSpec(rank=_TABLE_RANK, target_modules=_TARGETS, dropout=0.05),
        storage=_STORAGE[cells["Quantization"]],
        adapter_bytes=2,
    )


def _peak(text: str) -> int | None:
    found = re.fullmatch(r"([\d.]+) GB", text.strip())
    return round(float(found[1]) * 1e9) if found else None
