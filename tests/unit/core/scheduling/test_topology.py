"""Jobs on several nodes go where these are near to each other, on no more nodes than anywhere else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.has_world import facts, gpu_type, node, plan, running, started, waiting, where

from frenzy.core.capacity.free_capacity import FreeCapacity, Need, place_in
from frenzy.core.scheduling import HasPolicy, schedule
from frenzy.core.values.cluster import Cluster, Node, NodeState, Placement
from frenzy.core.values.scheduling_facts import RunningJob


def at(name: str, *topology: str, gpus: int = 8) -> Node:
    return replace(node(name, "h100", gpus), topology=topology)


def placed(nodes: list[Node], num_gpus: int, *others: RunningJob) -> dict[str, int]:
    snapshot = facts(nodes, [waiting("a", plan("h100", num_gpus))], list(others))
    return where(started(schedule(snapshot, 0.0, HasPolicy()))["a"])


def test_two_nodes_of_one_rack_are_taken_before_the_first_two_by_name() -> None:
    nodes = [at("n1", "z", "r1"), at("n2", "z", "r2"), at("n3", "z", "r3"), at("n4", "z", "r2")]
    assert placed(nodes, 16) == {"n2": 8, "n4": 8}


def test_where_no_rack_has_room_the_zone_is_kept() -> None:
    nodes = [at("n1", "east", "r1"), at("n2", "west", "r2"), at("n3", "west", "r3")]
    assert placed(nodes, 16) == {"n2": 8, "n3": 8}


def test_racks_of_one_name_in_two_zones_are_two() -> None:
    nodes = [at("n1", "east", "r1"), at("n2", "west", "r1"), at("n3", "west", "r3")]
    assert placed(nodes, 16) == {"n2": 8, "n3": 8}


def test_the_domain_with_the_fewest_idle_gpus_that_suffice_is_taken() -> None:
    nodes = [at(f"n{index}", "large") for index in range(4)] + [at("s1", "small"), at("s2", "small")]
    assert placed(nodes, 16) == {"s1": 8, "s2": 8}


def test_a_domain_is_a_preference_and_delays_no_job() -> None:
    nodes = [at("n1", "east"), at("n2", "west"), node("n3", "h100", 8)]
    assert placed(nodes, 24) == {"n1": 8, "n2": 8, "n3": 8}


def test_more_nodes_are_no_price_for_being_near() -> None:
    nodes = [at("n1", "r1"), at("n2", "r2"), *(at(f"s{index}", "r3", gpus=4) for index in range(4))]
    assert placed(nodes, 16) == {"n1": 8, "n2": 8}


def test_what_others_hold_leaves_its_domain_without_room() -> None:
    nodes = [at("n1", "r1"), at("n2", "r1"), at("n3", "r2"), at("n4", "r2")]
    assert placed(nodes, 16, running("r", plan("h100", 1), ("n1", 1))) == {"n3": 8, "n4": 8}


@given(st.permutations([at("n1", "z", "r1"), at("n2", "z", "r2"), at("n3", "z", "r1"), at("n4", "z", "r2")]))
def test_of_equal_domains_that_of_the_first_name_is_taken_in_whatever_order_nodes_are_listed(nodes: list[Node]) -> None:
    assert placed(nodes, 16) == {"n1": 8, "n3": 8}


def test_a_node_that_leaves_is_in_no_domain() -> None:
    leaving = replace(at("n2", "r1"), state=NodeState.DRAINING)
    assert placed([at("n1", "r1"), leaving, at("n3", "r2"), at("n4", "r2")], 16) == {"n3": 8, "n4": 8}


@st.composite
def placed_clusters(draw: st.DrawFn) -> tuple[list[Node], Need]:
    nodes = [
        replace(
            node(f"n{index}", "h100", draw(st.integers(1, 4)), host_gib=draw(st.sampled_from((16, 64)))),
            topology=draw(st.sampled_from(((), ("a",), ("a", "x"), ("a", "y"), ("b", "x")))),
        )
        for index in range(draw(st.integers(1, 8)))
    ]
    size = draw(st.sampled_from((1, 1, 2)))
    need = Need("h100", size * draw(st.integers(1, 6)), size, draw(st.sampled_from((0, 10))) << 30, 4 << 30, 1000)
    return nodes, need


@given(placed_clusters())
def test_topology_changes_neither_whether_a_job_fits_nor_on_how_many_nodes(drawn: tuple[list[Node], Need]) -> None:
    nodes, need = drawn
    near = _placement(nodes, need)
    anywhere = _placement([replace(each, topology=()) for each in nodes], need)
    assert (near is None) == (anywhere is None)
    if near is not None and anywhere is not None:
        assert near.num_gpus == anywhere.num_gpus == need.num_gpus
        assert len(near.allocations) == len(anywhere.allocations)
        held = FreeCapacity.of(Cluster((gpu_type("h100"),), tuple(nodes))).hold(need, near)
        assert all(min(free) >= 0 for free in held.by_type["h100"].free.values())


def _placement(nodes: list[Node], need: Need) -> Placement | None:
    return place_in(FreeCapacity.of(Cluster((gpu_type("h100"),), tuple(nodes))), need)
