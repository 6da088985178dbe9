"""What share of its datasheet a GPU reaches in training, by architecture and by training software.

The values are written by ``python -m tools.accuracy.throughput_fit`` from the fitted part of
published runs (a test refits and compares); the other part scores them. An architecture without
published rows takes the values of the nearest one that has some.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Final

from frenzy.core.values.hardware import GpuType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Measured = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What one kind of training program adds to the same card: work that no FLOP count sees, and shares of links.

    hidden_passes: how often a layer reads or writes a micro-batch's hidden states outside matrix products, in 16 bit;
    norm_passes: how often more where norms are chains of kernels; vocab_passes, adapter_passes: the same of the
    logits, and of inputs and outputs of maps with adapters. attention_factor: on the generation's share of attention,
    where the kernel is another one. gradient_passes: how often a micro-batch moves the gradients, in 16 bit: they are
    written, averaged and added up. launch_s_per_layer: least time of one layer's kernels, forward and backward;
    update_launches: what the optimizer step adds for each layer, as a share of it; hook_s_per_layer: what stage 3
    adds. inside, between: share of the link's rate that ring collectives reach inside a node and between nodes.
    overlap: share of communication that may hide behind compute. Arrays have an entry for each plan or run.
    """

    name: str
    hidden_passes: Measured
    norm_passes: Measured = 0.0
    vocab_passes: Measured
    adapter_passes: Measured = 0.0
    attention_factor: float = 1.0
    gradient_passes: Measured
    launch_s_per_layer: Measured
    update_launches: Measured
    hook_s_per_layer: Measured = 0.0
    inside: Measured
    between: Measured
    overlap: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation(Software):
    """What a program reaches on a card.

    matmul, attention: share of the card's peak in products with weights, and in attention (whose count includes the
    causal half that kernels skip). repeated_launches: what recomputing a layer adds, as a share of its launches.
    """

    matmul: Measured
    attention: Measured
    repeated_launches: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shares of peak of one generation; first_capability: the lowest compute capability they are used for."""

    name: str
    first_capability: float
    matmul: float
    attention: float


REPEATED_LAUNCHES: Final = 0.6767
ARCHITECTURES: Final = (
    Architecture(name="Hopper", first_capability=9.0, matmul=0.7711, attention=0.3171),
    Architecture(name="Ampere", first_capability=0.0, matmul=0.8839, attention=0.5846),
)
# This project's trainer: DeepSpeed over Hugging Face models, of the newest libraries. What its own rows cannot tell is
# that of other programs (``tools.accuracy.software``).
TRAINER: Final = Software(
    name="trainer",
    hidden_passes=182.4,
    norm_passes=216.0,
    vocab_passes=18.63,
    adapter_passes=16.35,
    attention_factor=2.1,
    gradient_passes=16.02,
    launch_s_per_layer=0.003304,
    update_launches=0.9858,
    hook_s_per_layer=0.005299,
    inside=0.5359,
    between=1.0,
    overlap=0.0,
)


def architecture_of(gpu: GpuType) -> Architecture:
    """The measured generation nearest to ``gpu``, by compute capability (Ampere when it is not known)."""
    capability = float(gpu.compute_capability or 0)
    return next(each for each in ARCHITECTURES if capability >= each.first_capability)


@cache
def shares_digest() -> str:
    """Changes with any of the values: what runs taught about others holds no more."""
    known = (ARCHITECTURES, TRAINER, REPEATED_LAUNCHES)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:12]


def utilisation(gpu: GpuType, software: Software = TRAINER) -> Utilisation:
    """The shares that ``software`` reaches on ``gpu``; the default is what this project's trainer runs."""
    generation = architecture_of(gpu)
    return Utilisation(
        **{each.name: getattr(software, each.name) for each in fields(software)},
        matmul=generation.matmul,
        attention=generation.attention * software.attention_factor,
        repeated_launches=REPEATED_LAUNCHES,
    )
