"""Which GPUs a node has, by the labels of clouds, drivers and administrators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.adapters.k8s.cluster_objects import A100, NODES, RULES, found, node_object, only

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.inventory.kinds import ESTIMATED_FROM
from frenzy.adapters.k8s.inventory.nodes import Declared
from frenzy.adapters.k8s.torch_builds import LOCKED, TorchBuild
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.units import GIB, MIB

BY_NAME: dict[str, dict[str, Any]] = {each["name"]: each for each in NODES}


def of(name: str) -> Any:
    fixture = BY_NAME[name]
    rules = replace(RULES, torch_build=TorchBuild(fixture.get("build", LOCKED)))
    return found(node_object(labels=fixture["labels"], resources=fixture["resources"]), rules=rules)


# label sets of clouds and drivers


@pytest.mark.parametrize("name", BY_NAME)
def test_the_labels_of_a_node_tell_its_gpu_type(name: str) -> None:
    told, fixture = of(name), BY_NAME[name]
    assert ", ".join(each.name for each in told.cluster.gpu_types) == fixture["type"]
    assert sum(each.num_gpus for each in told.cluster.nodes) == fixture["cards"]
    assert all(each.state is NodeState.READY for each in told.cluster.nodes)
    words = " ".join(f"{each.detail} {each.remedy}" for each in told.notices)
    assert fixture.get("notice", "") in words
    assert bool(told.notices) == ("notice" in fixture)


@pytest.mark.parametrize("name", [each["name"] for each in NODES if each["type"] in CATALOGUE])
def test_a_card_of_the_catalogue_is_taken_as_it_stands_there(name: str) -> None:
    (gpu,) = of(name).cluster.gpu_types
    assert gpu == CATALOGUE[gpu.name].gpu


@pytest.mark.parametrize("name", BY_NAME)
def test_no_type_promises_more_memory_than_the_driver_reports(name: str) -> None:
    for gpu in of(name).cluster.gpu_types:
        reported = BY_NAME[name]["labels"].get("nvidia.com/gpu.memory", "")
        if reported.isdecimal() and "mixed" not in name and name != "memory-in-gigabytes":
            assert 0 < gpu.memory_bytes <= int(reported) * MIB * 1.001


def test_every_fixture_names_its_source() -> None:
    assert all(each["source"] for each in NODES)
    assert len(BY_NAME) == len(NODES)


def test_a_slice_has_its_part_of_the_card_and_works_alone() -> None:
    (gpu,) = of("mig-single-a100-80").cluster.gpu_types
    card = CATALOGUE["a100-80"].gpu
    assert gpu.flops_per_s == pytest.approx(card.flops_per_s / 7)
    assert gpu.memory_bytes == pytest.approx(9728 * MIB, rel=0.04)
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(card.memory_bandwidth_bytes_per_s / 8, rel=0.08)
    assert gpu.max_gpus_per_job == 1


def test_a_card_of_four_slices_is_not_cut_into_seven() -> None:
    (gpu,) = of("mig-with-graphics").cluster.gpu_types
    assert gpu.flops_per_s == pytest.approx(CATALOGUE["rtx-pro-6000"].gpu.flops_per_s / 4)


def test_a_share_counts_on_its_part_of_memory_and_time() -> None:
    (gpu,) = of("time-sliced-l40s").cluster.gpu_types
    card = CATALOGUE["l40s"].gpu
    assert gpu.memory_bytes == card.memory_bytes // 4
    assert gpu.flops_per_s == card.flops_per_s / 4
    assert gpu.max_gpus_per_job == 1


def test_slices_of_several_profiles_are_nodes_of_their_own_that_share_the_machine() -> None:
    small, large = of("mig-mixed-a100-40").cluster.nodes
    assert (small.name, large.name) == ("gpu-1/mig-1g.5gb", "gpu-1/mig-3g.20gb")
    assert {each.labels[labels.HOSTNAME] for each in (small, large)} == {"gpu-1"}
    assert [each.labels[labels.GPU_RESOURCE] for each in (small, large)] == [
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/mig-3g.20gb",
    ]
    assert small.num_cpus + large.num_cpus == pytest.approx(96, abs=0.01)


def test_an_estimate_is_marked_on_the_node_until_the_cluster_file_describes_the_type() -> None:
    fixture = BY_NAME["newer-than-the-catalogue"]
    node = node_object(labels=fixture["labels"], resources=fixture["resources"])
    assert only(found(node)).labels[ESTIMATED_FROM] in CATALOGUE
    described = GpuType(name=fixture["type"], memory_bytes=270 * GIB, flops_per_s=2.5e15)
    told = found(node, declared=Declared(gpu_types={described.name: described}))
    assert told.cluster.gpu_types == (described,)
    assert told.notices == ()
    assert ESTIMATED_FROM not in only(told).labels


def test_the_cluster_file_gives_a_card_its_price() -> None:
    priced = replace(CATALOGUE["a100-80"].gpu, price_per_hour=1.6)
    assert found(node_object(), declared=Declared(gpu_types={"a100-80": priced})).cluster.gpu_types == (priced,)


def test_several_types_in_one_cluster_are_in_the_order_of_their_names() -> None:
    nodes = [
        node_object(name, labels=BY_NAME[name]["labels"], resources=BY_NAME[name]["resources"])
        for name in ("t4-of-2021", "eks-managed-nodes", "a100-80", "gke-t4")
    ]
    cluster = found(*nodes).cluster
    assert [each.name for each in cluster.gpu_types] == ["a100-80", "h100", "t4"]
    assert [each.name for each in cluster.nodes] == ["a100-80", "eks-managed-nodes", "gke-t4", "t4-of-2021"]
    assert cluster.num_gpus_by_type == {"a100-80": 8, "h100": 8, "t4": 2}


def test_one_slice_that_drivers_report_differently_is_one_type_with_the_least_memory() -> None:
    fixture = BY_NAME["mig-single-a100-80"]
    nodes = [
        node_object(
            f"n{mib}", labels={**fixture["labels"], "nvidia.com/gpu.memory": mib}, resources=fixture["resources"]
        )
        for mib in ("9856", "9728")
    ]
    (gpu,) = found(*nodes).cluster.gpu_types
    assert gpu.memory_bytes == round(9728 * MIB * 0.97)


# labels of ours


def test_a_label_of_ours_names_the_type_whatever_was_discovered() -> None:
    assert only(found(node_object(labels={**A100, labels.GPU_TYPE: "a100-40"}))).gpu_type == "a100-40"


def test_virtual_gpus_need_no_device_and_count_one_where_there_is_one() -> None:
    small = GpuType(name="v-small", memory_bytes=384 * MIB, flops_per_s=2e10, kind=DeviceKind.VIRTUAL)
    declared = Declared(gpu_types={"v-small": small})
    marks = {labels.GPU_TYPE: "v-small", labels.GPU_COUNT: "3"}
    bare = only(found(node_object(labels=marks, resources={}), declared=declared))
    assert (bare.num_gpus, bare.labels.get(labels.GPU_RESOURCE)) == (3, None)
    counted = only(found(node_object(labels=marks, resources={"frenzy.dev/gpu": "2"}), declared=declared))
    assert (counted.num_gpus, counted.labels[labels.GPU_RESOURCE]) == (2, "frenzy.dev/gpu")


@pytest.mark.parametrize(
    "marks", [{labels.GPU_TYPE: "a1000"}, {labels.GPU_TYPE: "t4"}, {labels.GPU_TYPE: "t4", labels.GPU_COUNT: "many"}]
)
def test_a_label_of_ours_that_says_too_little_is_told(marks: dict[str, str]) -> None:
    told = found(node_object(labels=marks, resources={}))
    assert told.cluster.nodes == ()
    assert told.notices[0].remedy
