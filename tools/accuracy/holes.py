"""How much of a card PyTorch's allocator loses, in its default settings, where each step has another length.

    python -m tools.accuracy.holes [CASE ...]    some minutes for each case; all of them where none is named

Two steps of DeepSpeed are traced (``frenzy.trainer.trace``) at three lengths: each tensor's size is a polynomial of the
length, and the order in which tensors come and go is the same. Steps of drawn lengths up to the longest are then played
in ``CachingAllocator`` on smaller and smaller cards, until one is too small. What the last one that ran them has beyond
the peak of tensors is printed in units of the step's largest tensor.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.memory.allocator_holes import largest_elements
from frenzy.core.values.job import LoraSpec, Precision
from frenzy.core.values.units import GIB
from frenzy.evaluation.settings_of_runs import published_models, shape_of
from frenzy.trainer.trace.step import TraceChoices, traced_run
from tools.accuracy.caching_allocator import Block, CachingAllocator, CardIsFull
from tools.accuracy.trace_rows import changes

_STEPS: Final = 30
_SEEDS: Final = 3
_LEAST_SHARE: Final = 0.1
_PRECISION: Final = 0.01
_HALF_BYTES: Final = 2
_FP32_BYTES: Final = 4
_EQUAL_STEPS: Final = 4
# At how many lengths a step with a loss in tiles is traced.
_TILED_LENGTHS: Final = 12
_WITHOUT_LIMIT: Final = 1 << 60
_ALL: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LORA: Final = LoraSpec(rank=8, alpha=16.0, dropout=0.0, target_modules=_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run with checkpoints whose sequences have at most ``length`` tokens, ``batch`` of them at a time."""

    model: str
    zero_stage: int
    length: int
    num_ranks: int = 8
    attention: str = "sdpa"
    lora: LoraSpec | None = None
    batch: int = 1
    fused_loss: bool = False


CASES: Final[Mapping[str, Case]] = {
    "llama-1b": Case(model="Llama-3.2-1B", zero_stage=2, length=8192),
    "llama-1b-lora": Case(model="Llama-3.2-1B", zero_stage=3, length=16384, lora=_LORA),
    "llama-1b-eager": Case(model="Llama-3.2-1B", zero_stage=2, length=6144, attention="eager"),
    "qwen-1.5b": Case(model="Qwen2.5-1.5B", zero_stage=3, length=16384),
    "qwen-1.5b-eager": Case(model="Qwen2.5-1.5B", zero_stage=3, length=8192, attention="eager"),
    "qwen-14b-eager": Case(model="Qwen2.5-14B", zero_stage=3, length=8192, attention="eager"),
    "llama-8b-lora": Case(model="Llama-3.1-8B", zero_stage=3, length=15000, num_ranks=4, lora=_LORA),
    "llama-1b-fused": Case(model="Llama-3.2-1B", zero_stage=2, length=8192, fused_loss=True),
    "qwen-1.5b-fused": Case(model="Qwen2.5-1.5B", zero_stage=3, length=16384, batch=4, fused_loss=True),
    "llama-1b-fused-z3": Case(model="Llama-3.2-1B", zero_stage=3, length=16384, batch=2, fused_loss=True),
    "qwen-3b-fused": Case(model="Qwen2.5-3B", zero_stage=2, length=16384, fused_loss=True),
    "qwen-1.5b-eager-lora": Case(model="Qwen2.5-1.5B", zero_stage=2, length=8192, attention="eager", lora=_LORA),
}


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """A step at any length.

    resident: bytes of each tensor that stays. order: the tensors as they come, and ~tensor where one goes. powers:
    a row for each power of the length, with each tensor's bytes for it.
    """

    resident: tuple[int, ...]
    order: tuple[int, ...]
    powers: NDArray[np.floating]

    def sizes(self, length: int) -> Sequence[int]:
        """Bytes of each tensor."""
        found = sum(row * float(length) ** power for power, row in enumerate(self.powers))
        return np.maximum(1, np.rint(found)).astype(np.int64).tolist()  # type: ignore[no-any-return]

    def started(self, capacity_bytes: int) -> CachingAllocator:
        """A card with what stays. Raises CardIsFull."""
        allocator = CachingAllocator(capacity_bytes)
        for each in self.resident:
            allocator.take(each)
        return allocator

    def play(self, allocator: CachingAllocator, length: int) -> None:
        """One step. Raises CardIsFull."""
        sizes, blocks = self.sizes(length), dict[int, Block]()
        for each in self.order:
            if each >= 0:
                blocks[each] = allocator.take(sizes[each])
            else:
                allocator.give(blocks.pop(~each))
        for left in blocks.values():
            allocator.give(left)

    def filled_bytes(self, lengths: Sequence[int], capacity_bytes: int) -> int | None:
        """The most that the allocator holds of such a card in steps of these lengths; None where they do not run."""
        try:
            allocator = self.started(capacity_bytes)
            for each in lengths:
                self.play(allocator, each)
        except CardIsFull:
            return None
        return allocator.most_reserved_bytes

    def peak_bytes(self, length: int) -> int:
        """The most that tensors take."""
        allocator = self.started(_WITHOUT_LIMIT)
        self.play(allocator, length)
        return allocator.most_used_bytes

    def needed_bytes(self, lengths: Sequence[int]) -> int:
        """The smallest card from which on larger ones run steps of these lengths, but for a hundredth of the peak.

        A smaller one may run them, too: it is full more often, and gives back what a larger one keeps until a tensor
        takes a piece of it. A card that is not filled takes the same course as one of what was held.
        """
        precision = round(_PRECISION * self.peak_bytes(max(lengths)))
        enough = tried = _WITHOUT_LIMIT
        while (filled := self.filled_bytes(lengths, tried)) is not None:
            enough, tried = filled, filled - precision
        return enough


@dataclass(frozen=True, kw_only=True)
class TiledStep(TracedStep):
    """A step whose loss has more tiles where its length is more: at some lengths, others are rounded up."""

    steps: Mapping[int, TracedStep]

    def play(self, allocator: CachingAllocator, length: int) -> None:
        """One step. Raises CardIsFull."""
        traced = min(each for each in self.steps if each >= length)
        self.steps[traced].play(allocator, traced)


def traced_step(case: Case) -> TracedStep:
    """The second step of ``case``: in the first DeepSpeed makes what stays."""
    if not case.fused_loss:
        return _step_of(case, (case.length // 4, case.length // 2, case.length))
    lengths = [case.length * part // _TILED_LENGTHS for part in range(1, _TILED_LENGTHS + 1)]
    steps = {each: _step_of(case, (each,)) for each in lengths}
    longest = steps[case.length]
    return TiledStep(resident=longest.resident, order=longest.order, powers=longest.powers, steps=steps)


def _step_of(case: Case, lengths: Sequence[int]) -> TracedStep:
    """A polynomial through as many lengths; the tensors are the same ones at each of them."""
    traced = [second_step(list(_changes(case, each))) for each in lengths]
    sizes = np.array([each for _, _, each in traced], dtype=np.float64)
    powers = np.linalg.solve(np.vander(np.array(lengths, dtype=np.float64), increasing=True), sizes)
    resident, order, _ = traced[-1]
    return TracedStep(resident=tuple(resident), order=tuple(order), powers=powers)


def _changes(case: Case, length: int) -> Iterator[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    choices = TraceChoices(
        batch=case.batch,
        sequence_length=length,
        precision=Precision.BF16,
        checkpointing=True,
        reentrant=True,
        attention=case.attention,
        lora=case.lora,
        fused_loss=case.fused_loss,
    )
    config = {**published_models()[case.model], "use_cache": False}
    traced_run(
        config, choices, _settings(case, config["hidden_size"]), num_ranks=case.num_ranks,
        seen=lambda log, second: found.extend([*changes(log, 0, second), (-1, 0), *changes(log, second)]),
    )  # fmt: skip
    yield from found


def _settings(case: Case, hidden: int) -> Mapping[str, Any]:
    """As the Trainer fills in what is ``auto``."""
    zero = {"stage": case.zero_stage, "reduce_bucket_size": hidden**2}
    if case.zero_stage == 3:
        zero |= {"stage3_prefetch_bucket_size": hidden**2 * 9 // 10, "stage3_param_persistence_threshold": 10 * hidden}
    return {
        "train_micro_batch_size_per_gpu": case.batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31 - 1,
        "bf16": {"enabled": True},
    }


def second_step(found: Sequence[tuple[int, int]]) -> tuple[list[int], list[int], list[int]]:
    """What stays; the order of the step's own tensors, numbered as they come; their bytes."""
    begin = found.index((-1, 0))
    held: dict[int, int] = {}
    for tensor, num_bytes in found[:begin]:
        held[tensor] = num_bytes
        if not num_bytes:
            del held[tensor]
    number: dict[int, int] = {}
    order, sizes = list[int](), list[int]()
    for tensor, num_bytes in found[begin + 1 :]:
        if num_bytes:
            number[tensor] = len(sizes)
            order.append(len(sizes))
            sizes.append(num_bytes)
        elif tensor in number:
            order.append(~number[tensor])
        else:
            held.pop(tensor)
    return list(held.values()), order, sizes


def drawn_lengths(longest: int, seed: int) -> Sequence[int]:
    """Of each step; the last one is the longest."""
    drawn = random.Random(seed)
    return [*(min(longest, round(longest * drawn.uniform(_LEAST_SHARE, 1.1))) for _ in range(_STEPS)), longest]


def largest_bytes(case: Case) -> int:
    """Of the tensors that grow with the length: logits or scores in fp32, and without them what is between two maps."""
    shape, eager = shape_of(case.model), case.attention == "eager"
    if case.fused_loss:
        return case.batch * _HALF_BYTES * shape.intermediate_size * case.length
    return case.batch * _FP32_BYTES * largest_elements(shape, case.length, has_logits=True, has_scores=eager)


def lost_tensors(case: Case, step: TracedStep, lengths: Sequence[int]) -> float:
    """What the allocator loses in steps of ``lengths``, in units of the largest tensor."""
    return (step.needed_bytes(lengths) - step.peak_bytes(case.length)) / largest_bytes(case)


def main() -> None:
    """A line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", metavar="CASE", help=", ".join(CASES))
    for name in parser.parse_args().case or CASES:
        case = CASES[name]
        step = traced_step(case)
        drawn = [drawn_lengths(case.length, seed) for seed in range(_SEEDS)]
        equal, *varied = (f"{lost_tensors(case, step, each):.2f}" for each in ([case.length] * _EQUAL_STEPS, *drawn))
        peak = step.peak_bytes(case.length) / GIB
        print(f"{name}: peak {peak:.1f} GiB, lost {', '.join(varied)}; equal lengths {equal}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
