"""How large the proof is: models of 125M, 1B and 8B on a card, the same paths in megabytes on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from frenzy.core.values.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One job and plans of it on one card. plans: (micro-batch, activation checkpointing)."""

    name: str
    config: Mapping[str, Any]
    sequence_length: int
    training: Mapping[str, Any]
    plans: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """base, one, eight: configs of the models. sequence_length: of the base and of the large ones.

    batch: sequences in a step. steps: of a timed run. matrix_cases: of the matrix at most. grid: of
    ``frenzy marp measure``; chunk: its cases in one go. compared: jobs whose plans are timed against each other.
    disk_bytes: on disk at most, weights included. patience: how much longer a case may take than on a card.
    """

    base: Mapping[str, Any]
    one: Mapping[str, Any]
    eight: Mapping[str, Any]
    sequence_length: int
    long_sequence_length: int
    batch: int
    steps: int
    matrix_cases: int
    options: int
    grid: Mapping[str, Any]
    chunk: int
    grid_cases: int
    compared: tuple[Compared, ...]
    disk_bytes: int = 40 * GIB
    patience: float = 1.0


def _llama(hidden: int, intermediate: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }


# Shapes of Llama 3.2 1B and Llama 3.1 8B, as their config.json give them; 125M as GPT-2's small, in Llama's form.
_125M: Final = _llama(
    768, 2048, 12, 12, num_key_value_heads=12, vocab_size=50304, max_position_embeddings=2048, tie_word_embeddings=True
)
_LARGE_VOCABULARY: Final = {"vocab_size": 128256, "max_position_embeddings": 131072, "num_key_value_heads": 8}
_1B: Final = _llama(2048, 8192, 16, 32, head_dim=64, tie_word_embeddings=True, **_LARGE_VOCABULARY)
_8B: Final = _llama(4096, 14336, 32, 32, tie_word_embeddings=False, **_LARGE_VOCABULARY)
_TINY: Final = _llama(
    256, 704, 2, 4, num_key_value_heads=2, vocab_size=4096, max_position_embeddings=1024, tie_word_embeddings=False
)

_QLORA: Final = {"lora": {"rank": 16, "quantization": "nf4"}}
_LORA: Final = {"lora": {"rank": 16}}

FULL: Final = Scale(
    base=_125M,
    one=_1B,
    eight=_8B,
    sequence_length=1024,
    long_sequence_length=4096,
    batch=8,
    steps=8,
    matrix_cases=10**6,
    options=10**6,
    grid={
        "models": [_125M, _1B],
        "sequence_length": [1024, 4096],
        "dp": [1, 8],
        "zero_stage": [1, 2, 3],
        "checkpointing": [False, True],
        "adapters": ["none", "lora-16", "qlora-16"],
        "optimizer": ["adamw", "adamw-8bit"],
        "loss": ["torch", "fused"],
        "micro_batch": [1, 4],
    },
    chunk=8,
    grid_cases=80,
    compared=(
        Compared(
            name="1B at 4096",
            config=_1B,
            sequence_length=4096,
            training={},
            plans=((1, False), (2, False), (8, True), (2, True), (4, True)),
        ),
        Compared(
            name="125M at 1024",
            config=_125M,
            sequence_length=1024,
            training={},
            plans=((8, False), (2, False), (8, True)),
        ),
        Compared(name="8B QLoRA", config=_8B, sequence_length=1024, training=_QLORA, plans=((8, False),)),
        Compared(name="8B LoRA", config=_8B, sequence_length=1024, training=_LORA, plans=((2, False), (8, True))),
    ),
)
SMALL: Final = Scale(
    base=_TINY,
    one=_TINY,
    eight=_TINY,
    sequence_length=64,
    long_sequence_length=128,
    batch=4,
    steps=4,
    matrix_cases=3,
    options=2,
    grid={"models": [_TINY], "sequence_length": [128], "dp": [2], "zero_stage": [1, 3], "micro_batch": [4]},
    chunk=2,
    grid_cases=2,
    compared=(
        Compared(name="4M at 128", config=_TINY, sequence_length=128, training={}, plans=((4, False), (2, True))),
        Compared(name="4M QLoRA", config=_TINY, sequence_length=64, training=_QLORA, plans=((4, False),)),
    ),
    disk_bytes=GIB,
    patience=3.0,
)
