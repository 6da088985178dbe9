"""What PyTorch's allocator keeps beyond the tensors, and when that fills a card."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.job import Precision
from frenzy.trainer.trace.step import TraceChoices, traced_run
from tools.accuracy.caching_allocator import Block, CachingAllocator, CardIsFull, replayed
from tools.accuracy.holes import TiledStep, TracedStep, drawn_lengths, second_step
from tools.accuracy.trace_rows import changes

MIB = 2**20


def test_a_large_block_of_which_a_small_tensor_took_a_piece_is_lost_for_the_next_large_one() -> None:
    card = CachingAllocator(250 * MIB)
    card.give(card.take(100 * MIB))
    piece = card.take(2 * MIB)

    card.take(100 * MIB)
    with pytest.raises(CardIsFull, match=f"{102 * MIB} in use, {200 * MIB} reserved"):
        card.take(100 * MIB)
    card.give(piece)
    assert card.take(100 * MIB).num_bytes == 100 * MIB


def test_a_full_card_gets_whole_segments_back() -> None:
    card = CachingAllocator(100 * MIB)
    card.give(card.take(60 * MIB))

    card.take(80 * MIB)
    assert (card.reserved_bytes, card.num_flushes) == (80 * MIB, 1)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB)), max_size=60))
def test_what_is_used_is_never_more_than_what_is_reserved_and_all_of_it_comes_back(
    calls: list[tuple[bool, int]],
) -> None:
    card, taken = CachingAllocator(1 << 40), list[Block]()
    for gives, size in calls:
        if gives and taken:
            card.give(taken.pop(size % len(taken)))
        else:
            taken.append(card.take(size))
        assert sum(each.num_bytes for each in taken) == card.used_bytes <= card.reserved_bytes
    for each in taken:
        card.give(each)
    card.capacity_bytes = 0
    with pytest.raises(CardIsFull):
        card.take(1 << 39)
    assert card.reserved_bytes == 0


def test_what_is_replayed_ends_with_what_was_not_freed() -> None:
    card = replayed([(0, 4 * MIB), (1, 8 * MIB), (0, 0), (2, 2 * MIB)], 1 << 30)

    assert (card.used_bytes, card.most_used_bytes) == (10 * MIB, 12 * MIB)


def a_step() -> TracedStep:
    """Something that stays; a checkpoint, and logits that end before it."""
    return TracedStep(
        resident=(16 * MIB,), order=(0, 1, ~1, ~0), powers=np.array([[0.0, 0.0], [4.0 * MIB, 32.0 * MIB]])
    )


def test_the_second_step_is_told_from_what_stays() -> None:
    begin, ends = (-1, 0), 0
    first = [(0, 7), (1, 5), (1, ends), (2, 3)]

    resident, order, sizes = second_step([*first, begin, (2, ends), (3, 4), (4, 6), (3, ends)])

    assert (resident, order, sizes) == ([7], [0, 1, ~0], [4, 6])


def test_a_traced_step_takes_in_the_allocator_what_its_tensors_take() -> None:
    config = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    choices = TraceChoices(batch=1, sequence_length=512, precision=Precision.BF16, checkpointing=True)
    played: list[CachingAllocator] = []

    result = traced_run(
        {**config, "num_attention_heads": 4, "vocab_size": 8192},
        choices,
        seen=lambda log, _: played.append(replayed(changes(log), 1 << 40)),
    )

    assert result.peak_bytes <= played[0].most_used_bytes <= 1.1 * result.peak_bytes
    assert played[0].used_bytes <= played[0].reserved_bytes


def test_sizes_follow_the_length() -> None:
    assert a_step().sizes(3) == [12 * MIB, 96 * MIB]
    assert a_step().peak_bytes(3) == (16 + 12 + 96) * MIB


def test_lengths_that_vary_need_a_larger_card_than_equal_ones() -> None:
    step = a_step()
    peak = step.peak_bytes(6)

    assert step.filled_bytes([6] * 4, peak) == peak
    assert step.filled_bytes([5, 6], peak) is None
    assert step.needed_bytes([5, 6]) == peak + step.sizes(5)[1] - step.sizes(6)[0]


def test_a_step_with_a_loss_in_tiles_is_that_of_the_next_traced_length() -> None:
    step = a_step()
    tiled = TiledStep(resident=step.resident, order=step.order, powers=step.powers, steps={4: step, 8: step})

    assert tiled.peak_bytes(5) == tiled.peak_bytes(8) == step.peak_bytes(8)
    assert tiled.peak_bytes(3) == step.peak_bytes(4)


def test_a_card_that_what_stays_fills_runs_no_step() -> None:
    assert a_step().filled_bytes([1], 10 * MIB) is None


def test_what_is_needed_counts_larger_cards_that_are_too_small_where_a_smaller_one_was_full_in_time() -> None:
    """On the smaller card nothing is kept for the third tensor, on the larger one it takes a piece of the first."""
    sizes = np.array([[100.0, 120.0, 2.0, 150.0]]) * MIB
    step = TracedStep(resident=(), order=(0, ~0, 1, 2, ~1, 3, ~3, ~2), powers=sizes)

    assert step.filled_bytes([1], 200 * MIB) == 170 * MIB
    assert step.filled_bytes([1], 240 * MIB) is None
    assert step.needed_bytes([1]) == 250 * MIB


def test_the_last_of_the_drawn_lengths_is_the_longest() -> None:
    drawn = drawn_lengths(1000, seed=1)

    assert drawn[-1] == max(drawn) == 1000
    assert min(drawn) >= 100
