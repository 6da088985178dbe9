"""Whether a run of DeepSpeed fits a card on which PyTorch's allocator leaves holes, step after step.

    python -m tools.accuracy.holes    what is reserved after each step, for the reports that do not agree

The peak of tensors is the memory model's. Which tensors come in which order is that of a decoder of gated maps with
checkpoints: of each layer its inputs and maps, after the layers the logits in 16 bits and in fp32 as a loss without
fusion keeps them. What is in the predicted peak beyond these stays for the whole run. Nobody records the lengths of a
data set's sequences: all are as long as the named limit, or drawn anew for each step, up to the limit.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from frenzy.adapters.calibration_file import default_calibration
from frenzy.core.memory.activation_coefficients import Attention, Loss
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.core.values.units import GIB
from frenzy.evaluation.deepspeed_run import DeepSpeedRun
from frenzy.evaluation.predict import predict
from frenzy.evaluation.published import ModelledRun
from frenzy.evaluation.read_own import alternatives, capacity_of, run_of
from frenzy.settings import CHECKOUT
from tools.accuracy.caching_allocator import Block, CachingAllocator, CardIsFull

_STEPS: Final = 30
_SEEDS: Final = 3
_LEAST_SHARE: Final = 0.1
_WITHOUT_LIMIT: Final = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTensors:
    """Bytes of a token's tensors. gathered: of stage 3, of the weights of one layer and of the head."""

    hidden: int
    layer: tuple[int, ...]
    scores: int
    num_layers: int
    vocabulary: int
    gathered: tuple[int, ...] = ()
    gathered_head: int = 0


def is_played(run: ModelledRun) -> TypeGuard[DeepSpeedRun]:
    """Whether the order of tensors is known: layers with checkpoints, a loss over all logits."""
    return isinstance(run, DeepSpeedRun) and run.plan.checkpointing and run.workload.loss is Loss.TORCH


def played(run: DeepSpeedRun, capacity_bytes: int) -> Sequence[Sequence[int | None]]:
    """What is reserved after each step, for each order of lengths, on a card of ``capacity_bytes``."""
    found = predict(run)
    tensors, tokens = step_tensors(run), run.workload.sequence_length * run.plan.micro_batch
    card = capacity_bytes - _beside_bytes(run, found)
    kept = _kept_bytes(tensors, tokens, found)
    return [reserved_after_steps(tensors, each, kept, card) for each in _lengths(tokens)]


def _beside_bytes(run: DeepSpeedRun, found: MemoryPrediction) -> int:
    """What the requirement has beside the peak and its share."""
    return found.required_bytes - round(found.peak_allocated_bytes * (1 + run.calibration.headroom_share))


def _kept_bytes(tensors: StepTensors, tokens: int, found: MemoryPrediction) -> int:
    alone = CachingAllocator(_WITHOUT_LIMIT)
    _step(alone, tensors, tokens)
    return max(0, found.peak_allocated_bytes - alone.most_used_bytes)


def _lengths(tokens: int) -> Iterator[Sequence[int]]:
    """Tokens of each step: the limit each time, then up to it."""
    yield (tokens, tokens, tokens)
    for seed in range(_SEEDS):
        drawn = random.Random(seed)
        yield [min(tokens, round(tokens * drawn.uniform(_LEAST_SHARE, 1.1))) for _ in range(_STEPS)]


def reserved_after_steps(
    tensors: StepTensors, lengths: Sequence[int], kept_bytes: int, card_bytes: int
) -> Sequence[int | None]:
    """What the allocator holds after each step; None, and no more, from the step that finds the card full."""
    allocator = CachingAllocator(card_bytes)
    found: list[int | None] = []
    try:
        for _ in range(tensors.num_layers):
            allocator.take(kept_bytes // tensors.num_layers)
        for tokens in lengths:
            _step(allocator, tensors, tokens)
            found.append(allocator.reserved_bytes)
    except CardIsFull:
        found.append(None)
    return found


def step_tensors(run: DeepSpeedRun) -> StepTensors:
    """The widths of ``run``'s model, in bytes of 16-bit tensors."""
    shape, ranks = run.workload.shape, run.plan.tp
    own, shared, wide = shape.query_width // ranks, shape.key_value_width // ranks, shape.intermediate_size // ranks
    eager = run.workload.attention is Attention.EAGER
    divided = run.plan.zero_stage == 3
    return StepTensors(
        hidden=2 * shape.hidden_size,
        layer=tuple(2 * each for each in (own, shared, shared, own, shared, own, *(wide,) * 4)),
        scores=2 * shape.num_heads // ranks * run.workload.sequence_length if eager else 0,
        num_layers=shape.num_layers,
        vocabulary=2 * shape.vocab_size // ranks,
        gathered=tuple(2 * each.num_elements // ranks for each in shape.layer) if divided else (),
        gathered_head=2 * shape.vocab_size * shape.hidden_size // ranks if divided else 0,
    )


def _step(allocator: CachingAllocator, tensors: StepTensors, tokens: int) -> None:
    """A forward pass, the loss, a backward pass that makes each layer again."""
    checkpoints = [allocator.take(tensors.hidden * tokens)]
    for _ in range(tensors.num_layers):
        layer = _layer(allocator, tensors, tokens)
        checkpoints.append(layer.pop())
        _give(allocator, layer)
    gradient = _loss(allocator, tensors, tokens)
    for _ in range(tensors.num_layers):
        _give(allocator, [checkpoints.pop()])
        layer = _layer(allocator, tensors, tokens)
        scores = [allocator.take(2 * tensors.scores * tokens) for _ in range(2) if tensors.scores]
        wide = [allocator.take(tensors.layer[-1] * tokens) for _ in range(2)]
        _give(allocator, [*scores, *wide])
        of_input = allocator.take(tensors.hidden * tokens)
        _give(allocator, [*layer, gradient])
        gradient = of_input
    _give(allocator, [gradient, *checkpoints])


def _layer(allocator: CachingAllocator, tensors: StepTensors, tokens: int) -> list[Block]:
    """What a layer holds at its end; the last is its output."""
    weights = [allocator.take(each) for each in tensors.gathered]
    in_fp32 = allocator.take(2 * tensors.hidden * tokens)
    held = [allocator.take(tensors.hidden * tokens)]
    _give(allocator, [in_fp32])
    if tensors.scores:
        plain = allocator.take(tensors.scores * tokens)
        held += [allocator.take(2 * tensors.scores * tokens), allocator.take(tensors.scores * tokens)]
        _give(allocator, [plain])
    held += [allocator.take(each * tokens) for each in tensors.layer]
    return [*weights, *held, allocator.take(tensors.hidden * tokens)]


def _loss(allocator: CachingAllocator, tensors: StepTensors, tokens: int) -> Block:
    """Logits in 16 bits and in fp32, their probabilities, and a gradient of each; that of the hidden states stays."""
    logits = tensors.vocabulary * tokens
    head = [allocator.take(tensors.gathered_head)] if tensors.gathered_head else []
    normed, plain = allocator.take(tensors.hidden * tokens), allocator.take(logits)
    wide, likely = allocator.take(2 * logits), allocator.take(2 * logits)
    _give(allocator, [wide, plain])
    of_likely, of_wide = allocator.take(2 * logits), allocator.take(2 * logits)
    _give(allocator, [of_likely, likely])
    of_plain = allocator.take(logits)
    _give(allocator, [of_wide])
    gradient = allocator.take(tensors.hidden * tokens)
    _give(allocator, [of_plain, normed, *head])
    return gradient


def _give(allocator: CachingAllocator, blocks: Sequence[Block]) -> None:
    for each in blocks:
        allocator.give(each)


def main() -> None:
    """One line for each report that does not agree, and each setting that it leaves open."""
    with (CHECKOUT / "tests/data/memory/reports/public_reports.csv").open(encoding="utf-8", newline="") as file:
        reports = [each for each in csv.DictReader(file) if each["explanation"] and not each["left_out"]]
    for report in reports:
        runs = [run_of(each, default_calibration()) for each in alternatives(report)]
        for line in dict.fromkeys(_line(each, capacity_of(report)) for each in runs if is_played(each)):
            print(report["source"], line)  # noqa: T201  # what the command is for


def _line(run: DeepSpeedRun, capacity_bytes: int) -> str:
    return "; ".join(_steps_line(each) for each in played(run, capacity_bytes))


def _steps_line(reserved: Sequence[int | None]) -> str:
    known = [each / GIB for each in reserved if each is not None]
    grown = f"{known[0]:.1f} to {max(known):.1f} GiB" if known else "nothing"
    return f"{grown}, then full at step {len(reserved)}" if reserved[-1] is None else grown


if __name__ == "__main__":
    main()
