"""Reader of the fms-acceleration benchmark: Hugging Face Trainer on A100 80 GB, alone and with FSDP.

Defaults of columns a file lacks are those of the benchmark's own defaults.yaml and of fms-hf-tuning:
activation checkpointing, flash attention, torch's AdamW, no accumulation, sequences packed to 4096
tokens, A100 of 80 GB. Model, batch, number of GPUs, and the adapters' rank and targets have none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.torch_kernels import Sharding, TorchOptimizer
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.job import LoraSpec
from frenzy.core.values.units import MIB
from frenzy.evaluation.cells import choice, flag, number, optional_size, text, whole, words
from frenzy.evaluation.published import Cells, Grade, Outcome, PublishedRow, UnknownRow
from frenzy.evaluation.settings_of_runs import RunSetting, recorded_model, torch_run

COLUMNS: Final = ("framework_config", "per_device_train_batch_size")
_LENGTHS: Final = ("max_seq_length", "max_seq_len", "sequence_length")
# All that are read; the benchmark's files have more, of its own results.
KNOWN: Final = (
    *(*COLUMNS, *_LENGTHS, "model_name_or_path", "num_gpus", "bf16", "fp16", "torch_dtype", "use_flash_attn"),
    *("packing", "peft_method", "r", "lora_alpha", "lora_dropout", "target_modules", "gradient_checkpointing", "optim"),
    *("gradient_accumulation_steps", "mem_peak_torch_mem_alloc_in_bytes", "mem_nvidia_mem_reserved", "train_runtime"),
    *("train_tokens_per_second", "train_samples_per_second", "error_messages", "transformers"),
)
_STORAGE: Final = {
    "baseline-peft-bnb": WeightStorage.NF4_DOUBLE,
    "accelerated-peft-bnb": WeightStorage.NF4_DOUBLE,
    "accelerated-peft-autogptq": WeightStorage.GPTQ,
}
_PLAIN: Final = ("none", "aadp", "foak-fast-kernels")
_SUFFIXES: Final = ("-foak", "-liger", "-padding-free", "-multipack")
_METHODS: Final = {"": False, "none": False, "full": False, "lora": True}
_OPTIMIZERS: Final = {
    "adamw_torch": TorchOptimizer.ADAMW,
    "adamw_torch_fused": TorchOptimizer.ADAMW_FUSED,
    "adamw_bnb_8bit": TorchOptimizer.ADAMW_8BIT,
    "adamw_8bit": TorchOptimizer.ADAMW_8BIT,
    "sgd": TorchOptimizer.SGD,
}
_SHOWN: Final = 80
_WEIGHT_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Framework:
    """What a ``framework_config`` switches on: how the base is stored, and which kernels replace the library's."""

    base: str
    kernels: bool
    liger: bool
    padding_free: bool

    @classmethod
    def of(cls, name: str) -> Framework:
        """Take the suffixes off. Raises UnknownRow for a base that is none of the benchmark's."""
        base, found = name.strip().lower(), set()
        while suffix := next((each for each in _SUFFIXES if base.endswith(each)), None):
            base = base.removesuffix(suffix)
            found.add(suffix)
        if base not in _PLAIN and base not in _STORAGE:
            raise UnknownRow(f"framework_config {name!r} is not modelled")
        return cls(
            base=base,
            kernels="-foak" in found or base == "foak-fast-kernels",
            liger="-liger" in found,
            padding_free="-padding-free" in found or base == "aadp",
        )


def _framework(cells: Cells) -> Framework:
    """That of the row; the benchmark writes ``none`` where a run had none, and never an empty cell."""
    if not text(cells, "framework_config", ""):
        raise UnknownRow("framework_config is not recorded: none stands for a run without")
    return Framework.of(text(cells, "framework_config"))


def read_row(cells: Cells, number_of_row: int, calibration: Calibration) -> PublishedRow:
    """One row of the benchmark; what it lacks or what is unknown refuses it by the column's name."""
    row = _measured(cells, number_of_row)
    return replace(row, run=torch_run(_setting(cells), calibration))


def refused_row(cells: Cells, number_of_row: int, refusal: str) -> PublishedRow:
    """The same row where it cannot be predicted."""
    try:
        row = _measured(cells, number_of_row)
    except UnknownRow:
        row = _unmeasured(cells, number_of_row)
    return replace(row, refusal=refusal)


def has_liger(cells: Cells) -> bool:
    """Whether the row ran with Liger's loss."""
    return text(cells, "framework_config", "").lower().endswith("-liger")


def _unmeasured(cells: Cells, number_of_row: int) -> PublishedRow:
    several = text(cells, "num_gpus", "1") != "1"
    framework, method = text(cells, "framework_config", "none"), text(cells, "peft_method", "full")
    label = f"{text(cells, 'model_name_or_path', '?').rsplit('/', 1)[-1]} {method} {framework}".removesuffix(" none")
    kind = framework.removesuffix("-foak") if method != "full" else "full"
    return PublishedRow(
        dataset="fms",
        number=number_of_row,
        label=f"{label} b{text(cells, 'per_device_train_batch_size', '?')} x{text(cells, 'num_gpus', '?')}",
        grade=Grade.A,
        framework="Hugging Face Trainer" + (" with FSDP" if several else ""),
        group=f"{kind}/{'fsdp' if several else 'single'}",
        outcome=Outcome.RAN,
        capacity_bytes=CATALOGUE["a100-80"].gpu.memory_bytes,
    )


def _measured(cells: Cells, number_of_row: int) -> PublishedRow:
    peak = optional_size(cells, "mem_peak_torch_mem_alloc_in_bytes")
    reserved = optional_size(cells, "mem_nvidia_mem_reserved")
    ran = peak is not None or optional_size(cells, "train_runtime") is not None
    if not ran:
        _check_failure(cells)
    varied = not flag(cells, "packing", default=True) or _framework(cells).padding_free
    return replace(
        _unmeasured(cells, number_of_row),
        grade=Grade.A_MINUS if varied else Grade.A,
        outcome=Outcome.RAN if ran else Outcome.OUT_OF_MEMORY,
        outcome_is_assumed=not ran and not text(cells, "error_messages", ""),
        peak_bytes=int(peak) if peak else None,
        reserved_bytes=int(reserved) * MIB if reserved else None,
    )


def _check_failure(cells: Cells) -> None:
    """Raise UnknownRow where the row does not tell of a run out of memory.

    ``benchmark.py`` records the error as ``error_messages``. The published tables lack that column: a run that failed
    has what nvidia-smi showed of it, and empty cells for all that the training would have printed.
    """
    told = text(cells, "error_messages", "")
    if told and "out of memory" not in told.lower():
        raise UnknownRow(f"error_messages {told[:_SHOWN]!r}: failed for another reason than memory")
    if not told and not (text(cells, "mem_nvidia_mem_reserved", "") and "train_runtime" in cells):
        raise UnknownRow(
            "mem_peak_torch_mem_alloc_in_bytes is not recorded, nor that memory ran out: error_messages, or an empty "
            "train_runtime beside mem_nvidia_mem_reserved"
        )


def _storage(framework: Framework, model: str, cells: Cells) -> WeightStorage:
    """Of the GPTQ checkpoints TheBloke's of 70B and Mixtral have one group of inputs each, others groups of 128."""
    storage = _STORAGE.get(framework.base, WeightStorage.PLAIN)
    ungrouped = text(cells, "model_name_or_path").startswith("TheBloke/") and not model.startswith("Mistral-7B")
    if storage is WeightStorage.GPTQ and ungrouped:
        return WeightStorage.GPTQ_UNGROUPED
    return storage


def _sequence_length(cells: Cells, num_gpus: int) -> int:
    """Tokens of a sequence: the benchmark prints tokens a second and GPU, and samples a second of all GPUs.

    Packed sequences all have the same length, a multiple of 512. Another average is of lengths that vary.
    """
    named = next((each for each in _LENGTHS if text(cells, each, "")), None)
    if named:
        return whole(cells, named)
    tokens, samples = number(cells, "train_tokens_per_second", 0.0), number(cells, "train_samples_per_second", 0.0)
    if not tokens or not samples:
        return _DEFAULT_LENGTH
    average = tokens / samples * num_gpus
    packed = round(average / _LENGTH_STEP) * _LENGTH_STEP
    if abs(packed - average) > _LENGTH_TOLERANCE * average:
        raise UnknownRow("max_seq_length is not recorded, and sequences of this length on average are not packed")
    return packed


_DEFAULT_LENGTH: Final = 4096
_LENGTH_STEP: Final = 512
_LENGTH_TOLERANCE: Final = 0.01


def _lora(cells: Cells) -> LoraSpec | None:
    if not choice(cells, "peft_method", _METHODS, ""):
        return None
    return LoraSpec(
        rank=whole(cells, "r"),
        alpha=number(cells, "lora_alpha", 16.0) or 16.0,
        dropout=min(number(cells, "lora_dropout", 0.1), 0.99),
        target_modules=words(cells, "target_modules"),
    )


def _setting(cells: Cells) -> RunSetting:
    """What the benchmark ran.

    GPTBigCode keeps its generation cache while it trains. Hidden states travel in fp32 where norms
    answer in fp32 under autocast and the quantised maps answer in the format they are asked in;
    FSDP, which needs one format in a unit, undoes it for norms that were cast on purpose. Under mixed
    precision accelerate makes the trained parameters that FSDP shards fp32; what FSDP gathers, and
    hidden states with it, stay in 16 bits, as they do for 16-bit weights without FSDP. The quantised
    configurations with Liger misspell the switch of the norms; runs of the fitting half with and without Liger
    took the same to the byte (rows 146 and 150), hence the norms' kernel ran.
    """
    framework = _framework(cells)
    model, num_gpus, lora = recorded_model(cells, "model_name_or_path"), whole(cells, "num_gpus"), _lora(cells)
    autocast = flag(cells, "bf16") or flag(cells, "fp16")
    weight_bytes = choice(cells, "torch_dtype", _WEIGHT_BYTES, "bfloat16")
    if weight_bytes == 4 and not autocast:
        raise UnknownRow("torch_dtype 'float32' without mixed precision: flash attention computes in 16 bits")
    storage = _storage(framework, model, cells)
    if storage is not WeightStorage.PLAIN and lora is None:
        raise UnknownRow(f"peft_method is not recorded, but framework_config {framework.base!r} trains adapters")
    if not flag(cells, "use_flash_attn", default=True):
        raise UnknownRow("use_flash_attn 'false' is not modelled")
    bigcode, several = "bigcode" in model, num_gpus > 1
    return RunSetting(
        model=model,
        micro_batch=whole(cells, "per_device_train_batch_size"),
        sequence_length=_sequence_length(cells, num_gpus),
        lora=lora,
        storage=storage,
        autocast=autocast and (lora is not None or (weight_bytes == 4 and not several)),
        master_fp32=lora is None and (weight_bytes == 4 or (autocast and several)),
        hidden_fp32=autocast and (bigcode or (framework.base == "baseline-peft-bnb" and not several)),
        checkpointing=flag(cells, "gradient_checkpointing", default=True),
        optimizer=choice(cells, "optim", _OPTIMIZERS, "adamw_torch"),
        sharding=Sharding.FULL if several else Sharding.NONE,
        num_gpus=num_gpus,
        accumulation=whole(cells, "gradient_accumulation_steps", 1),
        keeps_cache=bigcode,
        in_place_loss=framework.kernels and not framework.liger,
        fused_linear_loss=framework.liger,
        fused_norms=framework.kernels and not bigcode,
    )
