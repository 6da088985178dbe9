"""Reader of the fms-acceleration benchmark: Hugging Face Trainer on A100 80 GB, alone and with FSDP."""

from __future__ import annotations

from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.torch_kernels import Sharding
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import LoraSpec
from frenzy.core.values.units import MIB
from frenzy.evaluation.published import Cells, Grade, Outcome, PublishedRow, run_or_refusal
from frenzy.evaluation.settings_of_runs import RunSetting, published_models, torch_run

COLUMNS: Final = ("framework_config", "mem_peak_torch_mem_alloc_in_bytes", "per_device_train_batch_size")
_DEFAULT_LENGTH: Final = 4096
_STORAGE: Final = {
    "baseline-peft-bnb": WeightStorage.NF4_DOUBLE,
    "accelerated-peft-bnb": WeightStorage.NF4_DOUBLE,
    "accelerated-peft-autogptq": WeightStorage.GPTQ,
}


def release_of(cells: Cells) -> str:
    """The release a row was run with, which the table does not record.

    From 4.48 on every family's loss copies the logits to fp32 beside their 16-bit original, and
    GPTBigCode's does so too; the rows of GPTBigCode took no such copy, those of the others did.
    """
    return "transformers-4.47" if "bigcode" in cells["model_name_or_path"] else "transformers-4.48"


def read_row(cells: Cells, number: int, calibration: Calibration) -> PublishedRow:
    """One row of the benchmark."""
    peak, reserved = cells["mem_peak_torch_mem_alloc_in_bytes"], cells["mem_nvidia_mem_reserved"]
    method = cells["framework_config"].removesuffix("-foak") if cells["peft_method"] else "full"
    model = _model(cells)
    run, refusal = run_or_refusal(lambda: torch_run(_setting(cells), calibration))
    return PublishedRow(
        dataset="fms",
        number=number,
        label=f"{model} {_label(cells)} b{cells['per_device_train_batch_size']} x{cells['num_gpus']}",
        grade=Grade.A,
        framework="Hugging Face Trainer" + (" with FSDP" if int(cells["num_gpus"]) > 1 else ""),
        group=f"{method}/{'fsdp' if int(cells['num_gpus']) > 1 else 'single'}",
        outcome=Outcome.RAN if peak else Outcome.OUT_OF_MEMORY,
        capacity_bytes=CATALOGUE["a100-80"].gpu.memory_bytes,
        run=run,
        refusal=refusal,
        peak_bytes=int(float(peak)) if peak else None,
        reserved_bytes=int(float(reserved)) * MIB if reserved else None,
    )


def _label(cells: Cells) -> str:
    return f"{cells['peft_method'] or 'full'} {cells['framework_config']}".removesuffix(" none")


def _model(cells: Cells) -> str:
    name = cells["model_name_or_path"].rsplit("/", 1)[-1]
    plain = {each.lower(): each for each in published_models()}
    for candidate in (name, name.removesuffix("-GPTQ"), name.removesuffix("-GPTQ") + "-hf"):
        if candidate.lower() in plain:
            return plain[candidate.lower()]
    return name


def _storage(framework: str, cells: Cells) -> WeightStorage:
    """Of the GPTQ checkpoints only Mistral's has groups of 128 inputs; the larger ones have one group each."""
    storage = _STORAGE.get(framework, WeightStorage.PLAIN)
    if storage is WeightStorage.GPTQ and "Mistral" not in cells["model_name_or_path"]:
        return WeightStorage.GPTQ_UNGROUPED
    return storage


def _sequence_length(cells: Cells) -> int:
    """Tokens of a sequence: the benchmark prints tokens a second and GPU, and samples a second of all GPUs."""
    tokens, samples = cells["train_tokens_per_second"], cells["train_samples_per_second"]
    if not tokens or not samples:
        return _DEFAULT_LENGTH
    return round(float(tokens) / float(samples) * int(cells["num_gpus"]) / 64) * 64


def _setting(cells: Cells) -> RunSetting:
    """The benchmark trains with activation checkpointing (reentrant), flash attention and torch's AdamW.

    GPTBigCode keeps its generation cache while it trains. Hidden states travel in fp32 where norms
    answer in fp32 under autocast and the quantised maps answer in the format they are asked in;
    FSDP, which needs one format in a unit, undoes it for norms that were cast on purpose.
    """
    framework = cells["framework_config"]
    fast = framework.endswith("foak") or framework == "foak-fast-kernels"
    plain = framework.removesuffix("-foak")
    lora = None
    if cells["peft_method"]:
        targets = tuple(cells["target_modules"].split())
        lora = LoraSpec(
            rank=int(float(cells["r"])),
            alpha=float(cells["lora_alpha"]),
            dropout=float(cells["lora_dropout"]),
            target_modules=targets,
        )
    autocast = bool(cells["bf16"] or cells["fp16"])
    model, num_gpus = _model(cells), int(cells["num_gpus"])
    bigcode = "bigcode" in model
    return RunSetting(
        model=model,
        micro_batch=int(cells["per_device_train_batch_size"]),
        sequence_length=_sequence_length(cells),
        lora=lora,
        storage=_storage(plain, cells),
        autocast=autocast,
        hidden_fp32=autocast and (bigcode or (plain == "baseline-peft-bnb" and num_gpus == 1)),
        checkpointing=True,
        sharding=Sharding.FULL if num_gpus > 1 else Sharding.NONE,
        num_gpus=num_gpus,
        keeps_cache=bigcode,
        in_place_loss=fast,
        fused_norms=fast and not bigcode,
    )
