"""Settings that nothing of a run can use: of another framework, or without effect beside the row's other cells.

Such a cell says that the run was another than the one predicted, so it refuses its row. A cell that says what holds
anyway is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from frenzy.evaluation.cells import text, whole
from frenzy.evaluation.published import Cells, UnknownRow

_OFF: Final = ("false", "0", "no", "none")
_ON: Final = ("true", "1", "yes")
_OF_DEEPSPEED: Final[Mapping[str, Sequence[str]]] = {
    "tensor_parallel": ("1",),
    "offload_optimizer": _OFF,
    "offload_parameters": _OFF,
    "overlap_comm": _OFF,
    "gradients": (),
    "reduce_bucket": (),
    "prefetch_bucket": (),
    "persistence_threshold": (),
    "max_live_parameters": (),
    "held_logits_bytes": ("0",),
    "zero_init": _ON,
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """Whether a row uses ``column``; what the cell may say all the same, and what to do where it says more."""

    column: str
    neutral: Sequence[str]
    is_used: Callable[[Cells], bool]
    remedy: str

    def refuses(self, cells: Cells, alternatives: Sequence[Cells]) -> bool:
        # tables of numbers write 1 as 1.0
        found = text(cells, self.column, "").lower().removesuffix(".0")
        return bool(found) and found not in self.neutral and not any(map(self.is_used, alternatives))


def refuse_unused(cells: Cells, alternatives: Sequence[Cells]) -> None:
    """Raise UnknownRow for the first cell that none of the row's ``alternatives`` uses."""
    for rule in _RULES:
        if rule.refuses(cells, alternatives):
            raise UnknownRow(f"{rule.column} {text(cells, rule.column)!r} {rule.remedy}")


def _framework(cells: Cells) -> str:
    return text(cells, "framework").lower()


def _is_deepspeed(cells: Cells) -> bool:
    return _framework(cells) == "deepspeed"


def _has_adapters(cells: Cells) -> bool:
    return bool(text(cells, "lora_rank", ""))


def _is_sharded(cells: Cells) -> bool:
    return _framework(cells) == "fsdp" and whole(cells, "num_gpus", 1) > 1


_DEEPSPEED_ONLY: Final = "is a setting of framework deepspeed: leave it empty, or correct framework"
_WITHOUT_RANK: Final = "has no effect without adapters: fill lora_rank, or leave it empty"
_RULES: Final = (
    # replicas have stage 0; fsdp has not, and needs no other
    _Rule("zero_stage", ("0",), _is_deepspeed, _DEEPSPEED_ONLY),
    _Rule("zero_stage", (), lambda cells: _framework(cells) != "fsdp", _DEEPSPEED_ONLY),
    *(_Rule(name, neutral, _is_deepspeed, _DEEPSPEED_ONLY) for name, neutral in _OF_DEEPSPEED.items()),
    _Rule(
        "saves_on_card",
        _OFF,
        _is_sharded,
        "is a setting of framework fsdp on several GPUs: leave it empty, or correct framework and num_gpus",
    ),
    _Rule("lora_targets", (), _has_adapters, _WITHOUT_RANK),
    _Rule("lora_dropout", ("0",), _has_adapters, _WITHOUT_RANK),
    _Rule("storage", ("plain",), _has_adapters, _WITHOUT_RANK),
)
