"""Families without a closed form: traced, launched, and measured within the margin that they are planned with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trainer.test_memory_prediction import TEXT, check, measured

from frenzy.core.memory.model_trace import HEADROOM_SHARE
from frenzy.core.values import codec
from frenzy.trainer.measure.case import MeasureCase

pytestmark = pytest.mark.thorough

_STABLELM: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 2048,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
CASES = {
    "stablelm": (_STABLELM, "sdpa"),
    # Its experts get another number of tokens at each step, hence products of ever new shapes.
    "granitemoe": ({**_STABLELM, "intermediate_size": 128, "num_local_experts": 8, "num_experts_per_tok": 2}, "sdpa"),
    # Its config has an infinite bound, which JSON has no word for.
    "falcon_h1": (
        {
            **_STABLELM,
            "mamba_d_ssm": 384,
            "mamba_n_heads": 24,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_d_state": 64,
            "mamba_chunk_size": 64,
        },
        "sdpa",
    ),
    "bloom": ({"hidden_size": 256, "n_layer": 4, "n_head": 4, "vocab_size": 2048}, "eager"),
}


@pytest.mark.parametrize("family", CASES)
def test_a_family_that_has_no_closed_form_peaks_within_its_margin(tmp_path: Path, family: str) -> None:
    config, attention = CASES[family]
    case = {
        "config": {"model_type": family, **config},
        "attention": attention,
        "sequence_length": 64,
        "precision": "bf16",
        "dp": 1,
        "accumulation": 1,
    }
    layouts = [
        {"zero_stage": 2, "checkpointing": False, "micro_batch": 4},
        {"zero_stage": 1, "checkpointing": True, "micro_batch": 8},
    ]
    found = measured(tmp_path, TEXT, [codec.decode(MeasureCase, case | each) for each in layouts])
    assert len(found) == len(layouts)
    check(found, HEADROOM_SHARE)
