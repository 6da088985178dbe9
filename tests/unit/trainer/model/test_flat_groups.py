"""Groups that a card can lay flat."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.units import GIB
from frenzy.trainer.model.flat_groups import groups_for_card, least_of_all


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


def rank(number: int, folder: Path, found: Any) -> None:
    store = torch.distributed.FileStore(str(folder / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=number, world_size=2)
    found.put(least_of_all(100 + number, torch.device("cpu")))
    torch.distributed.destroy_process_group()


def test_ranks_whose_cards_have_different_room_cut_their_groups_alike(tmp_path: Path) -> None:
    assert least_of_all(7, torch.device("cpu")) == 7, "one rank asks nobody"
    forked = multiprocessing.get_context("fork")
    found = forked.SimpleQueue()
    ranks = [forked.Process(target=rank, args=(number, tmp_path, found)) for number in range(2)]
    for each in ranks:
        each.start()
    assert [found.get() for _ in ranks] == [100, 100]
    for each in ranks:
        each.join()
