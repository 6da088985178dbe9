"""What share of its datasheet a GPU reaches in training, by architecture and by training software.

The values are written by ``python -m tools.accuracy.throughput_fit`` from the fitted part of
published runs (a test refits and compares); the other part scores them. An architecture without
published rows takes the values of the nearest one that has some.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.values.hardware import GpuType

Measured = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Reached shares of peak rates, and work that no FLOP count sees.

    matmul, attention: share of the card's peak in products with weights, and in attention (whose
    count includes the causal half that kernels skip). hidden_passes: how often a layer reads or
    writes a micro-batch's hidden states outside matrix products, in 16 bit; vocab_passes: the same
    of the logits. launch_s_per_layer: least time of one layer's kernels, forward and backward.
    inside, between: share of the link's rate that ring collectives reach inside a node and between
    nodes. overlap: share of communication that may hide behind compute. state_passes: how often the
    optimizer step moves its states (28 bytes a parameter). Arrays have an entry for each plan or run.
    """

    matmul: Measured
    attention: Measured
    hidden_passes: Measured
    vocab_passes: Measured
    launch_s_per_layer: Measured
    inside: Measured
    between: Measured
    overlap: Measured
    state_passes: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shares of peak of one generation; first_capability: the lowest compute capability they are used for."""

    name: str
    first_capability: float
    matmul: float
    attention: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What one kind of training program adds to the same card."""

    name: str
    hidden_passes: float
    vocab_passes: float
    between: float
    overlap: float


LAUNCH_S_PER_LAYER: Final = 0.00452
INSIDE: Final = 1.0
STATE_PASSES: Final = 2.63
ARCHITECTURES: Final = (
    Architecture(name="Hopper", first_capability=9.0, matmul=0.715, attention=0.310),
    Architecture(name="Ampere", first_capability=0.0, matmul=0.828, attention=0.587),
)
FSDP: Final = Software(name="FSDP", hidden_passes=180.4, vocab_passes=23.4, between=0.988, overlap=0.0)
NANOTRON: Final = Software(name="nanotron", hidden_passes=23.7, vocab_passes=101.0, between=0.246, overlap=0.075)
# Hugging Face models ran on one node only: what crosses nodes, and the logits, are as with FSDP.
TRANSFORMERS: Final = Software(name="transformers", hidden_passes=420.7, vocab_passes=23.4, between=0.988, overlap=0.0)


def architecture_of(gpu: GpuType) -> Architecture:
    """The measured generation nearest to ``gpu``, by compute capability (Ampere when it is not known)."""
    capability = float(gpu.compute_capability or 0)
    return next(each for each in ARCHITECTURES if capability >= each.first_capability)


@cache
def shares_digest() -> str:
    """Changes with any of the values: what runs taught about others holds no more."""
    known = (ARCHITECTURES, FSDP, NANOTRON, TRANSFORMERS, LAUNCH_S_PER_LAYER, INSIDE, STATE_PASSES)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:12]


def utilisation(gpu: GpuType, software: Software = TRANSFORMERS) -> Utilisation:
    """The shares that ``software`` reaches on ``gpu``; the default is what this project's trainer runs."""
    generation = architecture_of(gpu)
    return Utilisation(
        matmul=generation.matmul,
        attention=generation.attention,
        hidden_passes=software.hidden_passes,
        vocab_passes=software.vocab_passes,
        launch_s_per_layer=LAUNCH_S_PER_LAYER,
        inside=INSIDE,
        between=software.between,
        overlap=software.overlap,
        state_passes=STATE_PASSES,
    )
