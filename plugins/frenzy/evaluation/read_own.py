"""Reader of a table of one's own runs, and of the runs of DeepSpeed on GPUs that others published.

A row names its model, framework, micro-batch and sequence length, and what was measured; other columns have
defaults (docs/accuracy.md lists them all). A cell ``a|b`` says that nobody recorded which of the two it was: the
prediction is then a range, the row's error the distance to it. Where the range is wider than 15 % of its lower end
the row is refused, with the columns at fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from frenzy.adapters.k8s.inventory.products import cards_sold_as
from frenzy.core.memory.activation_coefficients import Attention, Loss
from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.model_inputs import PlanRow, Workload
from frenzy.core.memory.torch_kernels import Sharding, TorchOptimizer
from frenzy.core.models.shape import ModelShape
from frenzy.core.models.trainable import trained_part
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.gpu_catalogue import CATALOGUE, types_named
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.core.values.units import GIB
from frenzy.core.values.zero_buckets import DEEPSPEED_BUCKET_ELEMENTS, ZeroBuckets, zero_buckets
from frenzy.evaluation.cells import choice, flag, number, optional_size, release_of, text, whole, words
from frenzy.evaluation.deepspeed_run import DeepSpeedRun
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import (
    OWN_RUNS,
    WIDEST_RANGE,
    Cells,
    Grade,
    ModelledRun,
    Outcome,
    PublishedRow,
    UnknownRow,
)
from frenzy.evaluation.settings_of_runs import RunSetting, recorded_model, shape_of, torch_run
from frenzy.evaluation.unused_settings import refuse_unused

COLUMNS: Final = ("model", "framework", "micro_batch", "sequence_length")
# All that are read, as docs/accuracy.md lists them.
KNOWN: Final = (
    *(*COLUMNS, "gpu", "capacity_gib", "outcome", "num_gpus", "tensor_parallel", "accumulation", "zero_stage"),
    *("precision", "optimizer", "checkpointing", "offload_optimizer", "offload_parameters", "overlap_comm"),
    *("attention", "loss", "lora_rank", "lora_targets", "lora_dropout", "storage", "gradients", "reduce_bucket"),
    *("prefetch_bucket", "persistence_threshold", "max_live_parameters", "held_logits_bytes", "zero_init"),
    *("load_best_model_at_end", "lengths", "expandable_segments", "transformers", "torch", "saves_on_card"),
    *("left_out", "grade", "source", "dataset", "note"),
    *(f"{what}_{unit}" for what in ("peak", "reserved") for unit in ("gib", "gb", "mib", "bytes")),
)
_EITHER: Final = "|"
_MOST_COMBINATIONS: Final = 64
_FREE_TEXT: Final = ("source", "note", "dataset", "label", "left_out", "explanation", "ended_with")
# What is printed on a card, what its driver says, and what CUDA leaves of it.
_SAME_CARD: Final = 0.12
_UNITS: Final = {"bytes": 1.0, "mib": 2.0**20, "gib": float(GIB), "gb": 1e9}
# Figures of one measurement, each rounded to its unit.
_SAME_MEASUREMENT: Final = 1.01
_OUTCOMES: Final = {"ran": Outcome.RAN, "out of memory": Outcome.OUT_OF_MEMORY, "oom": Outcome.OUT_OF_MEMORY}
_PRECISIONS: Final = {
    "bf16": Precision.BF16,
    "fp16": Precision.FP16,
    "fp32": Precision.FP32,
    "autocast-bf16": Precision.AUTOCAST_BF16,
}
_STORAGES: Final = {each.value: each for each in (WeightStorage.PLAIN, WeightStorage.NF4, WeightStorage.NF4_DOUBLE)}
_TORCH_OPTIMIZERS: Final = {each.value: each for each in TorchOptimizer}
# DeepSpeed's name or torch's: the states, and whether it updates in place.
_DEEPSPEED_OPTIMIZERS: Final = {
    "adamw": ("adamw", False),
    "adamw-fused": ("adamw", True),
    "fused-adam": ("adamw", True),
    "cpu-adam": ("adamw", True),
    "adamw-8bit": ("adamw-8bit", None),
    "sgd": ("sgd", None),
}


def read_row(cells: Cells, number_of_row: int, calibration: Calibration) -> PublishedRow:
    """One run. Raises UnknownRow where something is missing or unknown, by the column's name."""
    row = _measured(cells, number_of_row)
    if text(cells, "left_out", ""):
        raise UnknownRow(text(cells, "left_out"))
    possible = tuple(alternatives(cells))
    runs = [run_of(each, calibration) for each in possible]
    refuse_unused(cells, possible)
    if len(runs) > 1:
        peaks = [predict(each).peak_allocated_bytes for each in runs]
        runs = [run for _, run in sorted(zip(peaks, runs, strict=True), key=lambda each: -each[0])]
        width = max(peaks) / min(peaks) - 1.0
        if width > WIDEST_RANGE:
            names = ", ".join(name for name in cells if _is_range(cells, name))
            raise UnknownRow(f"not recorded: {names}; the prediction varies by more than {WIDEST_RANGE:.0%}")
    return replace(row, run=runs[0], alternatives=tuple(runs[1:]))


def refused_row(cells: Cells, number_of_row: int, refusal: str) -> PublishedRow:
    """The same row where it cannot be predicted."""
    try:
        row = _measured(cells, number_of_row)
    except UnknownRow:
        row = _unmeasured(cells, number_of_row)
    return replace(row, refusal=refusal)


def _unmeasured(cells: Cells, number_of_row: int) -> PublishedRow:
    framework = text(cells, "framework", "?")
    is_deepspeed = framework.lower() == "deepspeed"
    stage = f" ZeRO-{cells['zero_stage']}" if is_deepspeed and text(cells, "zero_stage", "") else ""
    method = "lora" if text(cells, "lora_rank", "") else "full"
    sizes = " ".join(
        f"{letter}{text(cells, name, '?')}" for name, letter in (("micro_batch", "b"), ("sequence_length", "s"))
    )
    return PublishedRow(
        dataset=text(cells, "dataset", OWN_RUNS),
        number=number_of_row,
        label=f"{text(cells, 'model', '?')} {method}{stage} {sizes} x{text(cells, 'num_gpus', '1')}",
        grade=Grade.B,
        framework="DeepSpeed" if is_deepspeed else framework,
        group=f"{method}{stage}/{framework}",
        outcome=Outcome.RAN,
        capacity_bytes=CATALOGUE["a100-80"].gpu.memory_bytes,
    )


def _measured(cells: Cells, number_of_row: int) -> PublishedRow:
    peak, reserved = _bytes(cells, "peak"), _bytes(cells, "reserved")
    if not text(cells, "outcome", "") and peak is None and reserved is None:
        raise UnknownRow("peak_gib is not recorded, nor another measurement or outcome")
    return replace(
        _unmeasured(cells, number_of_row),
        grade=choice(cells, "grade", {each.value.lower(): each for each in Grade}, "B"),
        outcome=choice(cells, "outcome", _OUTCOMES, "ran"),
        capacity_bytes=capacity_of(cells),
        peak_bytes=peak,
        reserved_bytes=reserved,
    )


def _bytes(cells: Cells, what: str) -> int | None:
    """What the columns of ``what`` say, each in its unit. Raises UnknownRow where they do not agree."""
    names = {f"{what}_{unit}": size for unit, size in _UNITS.items()}
    found = {name: value * size for name, size in names.items() if (value := optional_size(cells, name)) is not None}
    if found and max(found.values()) > _SAME_MEASUREMENT * min(found.values()):
        differing = " and ".join(f"{name} {text(cells, name)!r}" for name in found)
        raise UnknownRow(f"{differing} are not the same: leave the right one")
    return next(map(round, found.values()), None)


def capacity_of(cells: Cells) -> int:
    """The card's memory: what the row says, or its model of card has.

    Raises UnknownRow where the card is not known, or may be several of different memory, or has another one.
    """
    own, name = optional_size(cells, "capacity_gib"), text(cells, "gpu", "")
    if own is None and not name:
        raise UnknownRow("gpu is not recorded, nor capacity_gib")
    cards = types_named(name, [each.gpu for each in CATALOGUE.values()], cards_sold_as) if name else ()
    sizes = {each.memory_bytes for each in cards}
    if own is not None:
        if sizes and all(abs(own * GIB / each - 1) > _SAME_CARD for each in sizes):
            raise UnknownRow(
                f"gpu {name!r} does not have capacity_gib {text(cells, 'capacity_gib')!r}: leave the right one"
            )
        return round(own * GIB)
    if len(sizes) > 1:
        raise UnknownRow(f"gpu {name!r} may be {', '.join(sorted(each.name for each in cards))}: name one")
    if not sizes:
        raise UnknownRow(f"gpu {name!r} is no card of docs/gpu-catalogue.md: name one, or its memory as capacity_gib")
    return sizes.pop()


def _is_range(cells: Cells, name: str) -> bool:
    return name not in _FREE_TEXT and _EITHER in cells[name]


def alternatives(cells: Cells) -> Iterator[Cells]:
    """The row once for each combination of what was not recorded."""
    names = [name for name in cells if _is_range(cells, name)]
    choices = [[part.strip() for part in cells[name].split(_EITHER)] for name in names]
    found = itertools.product(*choices)
    for count, values in enumerate(found):
        if count >= _MOST_COMBINATIONS:
            raise UnknownRow(f"not recorded: {', '.join(names)}; these are more than {_MOST_COMBINATIONS} combinations")
        yield {**cells, **dict(zip(names, values, strict=True))}


def run_of(cells: Cells, calibration: Calibration) -> ModelledRun:
    """A run whose cells name one setting each."""
    framework = choice(cells, "framework", {"deepspeed": True, "torch": False, "fsdp": False})
    # true of any framework's runs, and of effect on some
    flag(cells, "load_best_model_at_end")
    _zeroes_gradients(cells)
    return _deepspeed_run(cells, calibration) if framework else _torch_run(cells, calibration)


def _shape(cells: Cells) -> ModelShape:
    return shape_of(recorded_model(cells, "model"))


def _lora(cells: Cells) -> LoraSpec | None:
    if not text(cells, "lora_rank", ""):
        return None
    rank, dropout = whole(cells, "lora_rank"), number(cells, "lora_dropout", 0.0)
    try:
        return LoraSpec(rank=rank, dropout=dropout, target_modules=words(cells, "lora_targets"))
    except PermanentError as error:
        raise UnknownRow(error.reason.detail) from error


def _torch_run(cells: Cells, calibration: Calibration) -> ModelledRun:
    """torch's own loop or the Trainer's, alone or under FSDP with all parameters sharded.

    FSDP gathers weights in 16 bits, so hidden states are in 16 bits, too, where autocast over fp32 weights has fp32.
    """
    num_gpus = whole(cells, "num_gpus", 1)
    precision = choice(cells, "precision", _PRECISIONS, "bf16")
    if precision is Precision.FP32:
        raise UnknownRow("precision 'fp32' is predicted for framework deepspeed only")
    sharded = text(cells, "framework").lower() == "fsdp" and num_gpus > 1
    lora, autocast = _lora(cells), precision is Precision.AUTOCAST_BF16
    run = torch_run(
        RunSetting(
            model=recorded_model(cells, "model"),
            micro_batch=whole(cells, "micro_batch"),
            sequence_length=whole(cells, "sequence_length"),
            lora=lora,
            storage=choice(cells, "storage", _STORAGES, "plain"),
            autocast=autocast and (lora is not None or not sharded),
            master_fp32=autocast and lora is None,
            checkpointing=flag(cells, "checkpointing"),
            attention=_attention(cells, calibration),
            optimizer=choice(cells, "optimizer", _TORCH_OPTIMIZERS, "adamw"),
            sharding=Sharding.FULL if sharded else Sharding.NONE,
            num_gpus=num_gpus,
            accumulation=whole(cells, "accumulation", 1),
            fused_linear_loss=_loss(cells) is Loss.FUSED,
        ),
        calibration,
    )
    return replace(
        run,
        lengths_vary=_lengths_vary(cells),
        segments_grow=flag(cells, "expandable_segments"),
        keeps_unsharded=sharded and _prepares_late(cells),
        saves_on_card=flag(cells, "saves_on_card") and sharded,
        zeroes_gradients=_zeroes_gradients(cells),
    )


def _zeroes_gradients(cells: Cells) -> bool:
    """Whether ``zero_grad`` leaves zeros: torch before 2.0 (``set_to_none`` is the default since)."""
    told = text(cells, "torch", "")
    return bool(told) and release_of(told, "torch") < (2, 0)


def _prepares_late(cells: Cells) -> bool:
    """Whether the Trainer hands FSDP a model whose optimizer there is already: transformers 4.30 and 4.31.

    ``accelerator.prepare(model, optimizer)`` makes another optimizer. The scheduler keeps the first one, and with it
    the parameters that FSDP moved to the card whole, of which its flat ones are copies. 4.29 wrapped the model itself
    before, 4.32 prepares it first (``Trainer._inner_training_loop``).
    """
    told = text(cells, "transformers", "")
    return bool(told) and (4, 30) <= release_of(told) < (4, 32)


def _attention(cells: Cells, calibration: Calibration) -> Attention:
    """Coefficients of older releases are FlashAttention's by name; later ones hold torch's, which calls its kernel."""
    asked = choice(cells, "attention", {each.value: each for each in Attention}, Attention.FLASH_2.value)
    named = any(each.attention is Attention.FLASH_2 for each in calibration.activations)
    return asked if named or asked is not Attention.FLASH_2 else Attention.SDPA


def _loss(cells: Cells) -> Loss:
    return choice(cells, "loss", {each.value: each for each in Loss}, "torch")


def _lengths_vary(cells: Cells) -> bool:
    return choice(cells, "lengths", {"fixed": False, "vary": True}, "fixed")


def _deepspeed_run(cells: Cells, calibration: Calibration) -> DeepSpeedRun:
    shape, lora = _shape(cells), _lora(cells)
    precision = choice(cells, "precision", _PRECISIONS, "bf16")
    states, in_place = choice(cells, "optimizer", _DEEPSPEED_OPTIMIZERS, "adamw")
    num_gpus, tp = whole(cells, "num_gpus", 1), whole(cells, "tensor_parallel", 1)
    if num_gpus % tp:
        raise UnknownRow(f"tensor_parallel {tp} does not divide num_gpus {num_gpus}")
    workload = Workload(
        shape=shape,
        trained=trained_part(shape, lora),
        precision=precision,
        optimizer=states,
        updates_in_place=in_place,
        sequence_length=whole(cells, "sequence_length"),
        kind=DeviceKind.CUDA,
        bucket_elements=DEEPSPEED_BUCKET_ELEMENTS,
        buckets=_buckets(cells),
        overlap_comm=flag(cells, "overlap_comm"),
        overlaps_offloaded=True,
        # DeepSpeed's default is the weights' format.
        accumulation_bytes=choice(cells, "gradients", _GRADIENTS, "") or (2 if precision in _HALVES else 4),
        storage=choice(cells, "storage", _STORAGES, "plain"),
        attention=_attention(cells, calibration),
        loss=_loss(cells),
        adapter_dropout=lora is not None and lora.dropout > 0,
        lengths_vary=_lengths_vary(cells),
        segments_grow=flag(cells, "expandable_segments"),
        reentrant=True,
    )
    plan = PlanRow(
        dp=num_gpus // tp,
        tp=tp,
        zero_stage=choice(cells, "zero_stage", {"1": 1, "2": 2, "3": 3}),
        micro_batch=whole(cells, "micro_batch"),
        accumulation=whole(cells, "accumulation", 1),
        checkpointing=flag(cells, "checkpointing"),
        offload=flag(cells, "offload_optimizer"),
    )
    without_init = plan.zero_stage == 3 and not flag(cells, "zero_init", default=True)
    moved = flag(cells, "offload_parameters")
    if moved and (plan.zero_stage < 3 or not plan.offload or workload.storage is not WeightStorage.PLAIN):
        raise UnknownRow("offload_parameters 'true' needs zero_stage 3, offload_optimizer and plain weights")
    setting = workload.activation_setting(checkpointing=plan.checkpointing)
    if calibration.activation(shape, setting) is None:
        raise UnknownRow(f"no coefficients of {shape.family} for {setting.precision}, {setting.attention}")
    return DeepSpeedRun(
        workload=workload,
        plan=plan,
        calibration=calibration,
        held_logits_bytes=whole(cells, "held_logits_bytes", 0, least=0),
        keeps_gathered=without_init and not plan.checkpointing,
        offload_parameters=moved,
        made_whole=without_init,
        loads_best=flag(cells, "load_best_model_at_end"),
    )


_HALVES: Final = frozenset({Precision.BF16, Precision.FP16})
_GRADIENTS: Final[Mapping[str, int | None]] = {"": None, "fp32": 4, "bf16": 2, "fp16": 2}


def _buckets(cells: Cells) -> ZeroBuckets:
    """DeepSpeed's own defaults where a column says nothing."""
    own = zero_buckets(DEEPSPEED_BUCKET_ELEMENTS)
    return replace(
        own,
        reduce=whole(cells, "reduce_bucket", own.reduce),
        prefetch=whole(cells, "prefetch_bucket", own.prefetch, least=0),
        persistent=whole(cells, "persistence_threshold", own.persistent, least=0),
        live=whole(cells, "max_live_parameters", own.live, least=0),
    )
