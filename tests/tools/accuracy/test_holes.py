"""What PyTorch's allocator keeps beyond the tensors, and when that fills a card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.accuracy.caching_allocator import Block, CachingAllocator, CardIsFull
from tools.accuracy.holes import StepTensors, reserved_after_steps

MIB = 2**20
SMALL_MODEL = StepTensors(hidden=64, layer=(64, 64, 256), scores=0, num_layers=2, vocabulary=4096)


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


def test_lengths_that_vary_leave_holes_where_equal_ones_do_not() -> None:
    equal = reserved_after_steps(SMALL_MODEL, [8192] * 6, 0, 1 << 40)
    varied = reserved_after_steps(SMALL_MODEL, [5000, 8192, 6000, 7000, 7800, 8192], 0, 1 << 40)

    assert len(set(equal[1:])) == 1
    assert (varied[-1] or 0) > (equal[-1] or 0)


def test_nothing_is_told_of_steps_after_the_card_was_full() -> None:
    assert reserved_after_steps(SMALL_MODEL, [1000, 100_000, 1000], 0, 300 * MIB)[1:] == [None]
