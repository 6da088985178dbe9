"""Learning rate and data order as pure functions of the step, so that a resume needs no state."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.values.job import TrainingSpec

_ROUNDS: Final = 6
_MIX_A: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B: Final = np.uint64(0x94D049BB133111EB)
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK_64: Final = 2**64 - 1


def learning_rate(training: TrainingSpec, *, step: int, total_steps: int) -> float:
    """The rate of ``step`` (from 1): linear warm-up, then constant, or a decay to ``lr_min_share`` of the peak.

    The decay is linear or half a cosine from the warm-up's end; of wsd, linear in the last ``lr_decay_share`` of steps.
    """
    peak, warmup_steps = training.learning_rate, _warmup_steps(training, total_steps)
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if training.lr_schedule == "constant":
        return peak
    stable_until = warmup_steps
    if training.lr_schedule == "wsd":
        stable_until = max(warmup_steps, total_steps - math.ceil(training.lr_decay_share * total_steps))
    progress = (step - 1 - stable_until) / max(1, total_steps - stable_until)
    progress = min(1.0, max(0.0, progress))
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if training.lr_schedule == "cosine" else 1.0 - progress
    lowest = peak * training.lr_min_share
    return lowest + (peak - lowest) * left


def _warmup_steps(training: TrainingSpec, total_steps: int) -> int:
    return training.warmup_steps or math.ceil(training.warmup_share * total_steps)


def total_steps(training: TrainingSpec, *, num_sequences: int) -> int:
    """Optimizer steps of the whole run: ``max_steps``, or enough for ``epochs`` passes."""
    if training.max_steps is not None:
        return training.max_steps
    assert training.epochs is not None
    return max(1, math.ceil(training.epochs * num_sequences / training.global_batch_size))


def batch_sequences(*, seed: int, step: int, global_batch_size: int, num_sequences: int) -> NDArray[np.int64]:
    """Indices of the sequences in the global batch of ``step`` (from 1), in batch order.

    Every epoch is a permutation of its own; a batch may span two epochs. No plan enters, so any
    split over workers, micro-batches and accumulation trains on the same batch at the same step.
    """
    positions = np.arange((step - 1) * global_batch_size, step * global_batch_size, dtype=np.int64)
    epochs, offsets = np.divmod(positions, num_sequences)
    found = np.empty_like(offsets)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        found[chosen] = _permute(offsets[chosen], size=num_sequences, key=_mix_int(seed * 2**32 + int(epoch)))
    return found


def dropout_seed(*, seed: int, step: int, first_sample: int) -> int:
    """Seed of the micro-batch whose first sample has that position in the global batch."""
    return _mix_int(_mix_int(seed * 2**32 + step) + first_sample) >> 1


def _permute(values: NDArray[np.int64], *, size: int, key: int) -> NDArray[np.int64]:
    """Images of ``values`` under a keyed permutation of 0..size-1, in constant memory.

    A Feistel network permutes the next power of four; images outside the range walk on until
    they fall inside (Black and Rogaway 2002, cycle walking).
    """
    half_bits = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    image = _feistel(values.astype(np.uint64), half_bits=half_bits, key=key)
    outside = image >= np.uint64(size)
    while outside.any():
        image[outside] = _feistel(image[outside], half_bits=half_bits, key=key)
        outside = image >= np.uint64(size)
    return image.astype(np.int64)


def _feistel(values: NDArray[np.uint64], *, half_bits: int, key: int) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for round_number in range(_ROUNDS):
        round_key = np.uint64(_mix_int(key + round_number))
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << shift) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_A
    values = (values ^ (values >> np.uint64(27))) * _MIX_B
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _mix_int(value: int) -> int:
    return int(_mix(np.array([(value + _GOLDEN) & _MASK_64], dtype=np.uint64))[0])
