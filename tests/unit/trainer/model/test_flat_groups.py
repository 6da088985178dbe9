"""Groups that a card can lay flat."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.units import GIB
from frenzy.trainer.model.flat_groups import groups_for_card


def parameters(*sizes: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(each)) for each in sizes]


def test_groups_stay_as_they_are_where_the_card_holds_the_largest_once_more() -> None:
    one, apart = parameters(10, 20), [{"params": parameters(10)}, {"params": parameters(5), "weight_decay": 0.0}]
    for groups in (one, apart):
        assert groups_for_card(groups, free_bytes=GIB + 120) is groups
        assert groups_for_card(groups, free_bytes=GIB + 39) is not groups


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), group_bytes=st.integers(1, 300))
def test_cut_groups_hold_every_parameter_once_in_its_order_and_few_bytes(sizes: list[int], group_bytes: int) -> None:
    given_ones = parameters(*sizes)
    found = groups_for_card(given_ones, free_bytes=0, group_bytes=group_bytes)
    parts = [list(each["params"]) for each in found if isinstance(each, dict)]
    assert [id(each) for part in parts for each in part] == [id(each) for each in given_ones]
    assert all(len(part) == 1 or sum(each.nbytes for each in part) <= group_bytes for part in parts)


def test_a_cut_group_keeps_what_is_said_of_it() -> None:
    vectors = parameters(4, 4)
    found = groups_for_card([{"params": vectors, "weight_decay": 0.0}], free_bytes=0, group_bytes=16)
    assert found == [{"params": [each], "weight_decay": 0.0} for each in vectors]
