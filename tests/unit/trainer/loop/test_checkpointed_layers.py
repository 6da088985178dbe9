"""Which layers of a model are checkpointed."""

from __future__ import annotations

import pytest
import transformers

from frenzy.trainer.loop.worker import checkpoint_activations


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [True] * 5), (2, [True, False, True, False, True]), (9, [True] + [False] * 4)]
)
def test_one_of_so_many_layers_is_checkpointed_from_the_first_on(every: int, expected: list[bool]) -> None:
    config = transformers.GPT2Config(n_layer=5, n_embd=8, n_head=2, vocab_size=16, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    checkpoint_activations(model, every)
    assert [bool(each.gradient_checkpointing) for each in model.transformer.h] == expected
