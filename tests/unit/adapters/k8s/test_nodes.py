"""The inventory from Node objects and pods: types, what is free, what is left out and said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.k8s.cluster_objects import A100, RULES, found, node_object, only, our_pod, pod_object

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.nodes import ESTIMATED_FROM, Declared
from frenzy.adapters.k8s.objects import pod_requests
from frenzy.adapters.k8s.pod_rules import PodRules, Toleration, TolerationOperator
from frenzy.adapters.k8s.quantity import parse_quantity
from frenzy.core.cluster import Node, NodeGroup, NodeState
from frenzy.core.gpu_catalogue import CATALOGUE
from frenzy.core.hardware import DeviceKind, GpuType
from frenzy.core.units import GIB, MIB

FIXTURES = yaml.safe_load((Path(__file__).parents[3] / "data/kubernetes/nodes.yaml").read_text(encoding="utf-8"))
BY_NAME: dict[str, dict[str, Any]] = {each["name"]: each for each in FIXTURES}
EIGHT = {"nvidia.com/gpu": "8"}


def of(name: str) -> Any:
    fixture = BY_NAME[name]
    return found(node_object(labels=fixture["labels"], resources=fixture["resources"]))


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


@pytest.mark.parametrize("name", [each["name"] for each in FIXTURES if each["type"] in CATALOGUE])
def test_a_card_of_the_catalogue_is_taken_as_it_stands_there(name: str) -> None:
    (gpu,) = of(name).cluster.gpu_types
    assert gpu == CATALOGUE[gpu.name].gpu


@pytest.mark.parametrize("name", BY_NAME)
def test_no_type_promises_more_memory_than_the_driver_reports(name: str) -> None:
    for gpu in of(name).cluster.gpu_types:
        reported = BY_NAME[name]["labels"].get("nvidia.com/gpu.memory", "")
        if reported.isdecimal() and "mixed" not in name:
            assert 0 < gpu.memory_bytes <= int(reported) * MIB * 1.001


def test_every_fixture_names_its_source() -> None:
    assert all(each["source"] for each in FIXTURES)
    assert len(BY_NAME) == len(FIXTURES)


def test_a_slice_has_its_part_of_the_card_and_works_alone() -> None:
    (gpu,) = of("mig-single-a100-80").cluster.gpu_types
    card = CATALOGUE["a100-80"].gpu
    assert gpu.flops_per_s == pytest.approx(card.flops_per_s / 7)
    assert gpu.memory_bytes == pytest.approx(9728 * MIB, rel=0.04)
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(card.memory_bandwidth_bytes_per_s / 8, rel=0.08)
    assert gpu.max_gpus_per_job == 1


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
        for name in ("t4-of-2023", "h100-sxm", "a100-80", "t4-of-2021")
    ]
    cluster = found(*nodes).cluster
    assert [each.name for each in cluster.gpu_types] == ["a100-80", "h100", "t4"]
    assert [each.name for each in cluster.nodes] == ["a100-80", "h100-sxm", "t4-of-2021", "t4-of-2023"]
    assert cluster.num_gpus_by_type == {"a100-80": 8, "h100": 8, "t4": 3}


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


# what is free


def test_pods_of_others_are_counted_off_and_ours_are_not() -> None:
    pods = (
        pod_object("theirs", "gpu-1", {"nvidia.com/gpu": "2", "cpu": "8", "memory": "64Gi"}),
        pod_object("same-namespace", "gpu-1", {"nvidia.com/gpu": "1"}, namespace="train"),
        pod_object("daemon", "gpu-1", {"cpu": "500m", "memory": "1Gi"}),
        our_pod("ours", "gpu-1", {"nvidia.com/gpu": "4", "cpu": "4", "memory": "100Gi"}, placed_on="gpu-1"),
        our_pod("another-installation", "gpu-1", {"nvidia.com/gpu": "1"}, placed_on="gpu-1", namespace="other"),
    )
    node = only(found(node_object(), pods=pods))
    assert (node.num_gpus, node.num_taken, node.num_usable) == (8, 4, 4)
    assert node.num_cpus == 96 - 8.5
    assert node.host_memory_bytes == (1024 - 65 - 4 * 8) * GIB


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_have_ended_hold_nothing(phase: str) -> None:
    assert only(found(node_object(), pods=(pod_object("done", "gpu-1", EIGHT, phase=phase),))).num_usable == 8


def test_pods_without_a_node_and_on_other_nodes_take_nothing_here() -> None:
    pods = (pod_object("waits", None, EIGHT, phase="Pending"), pod_object("elsewhere", "gpu-2", EIGHT))
    assert only(found(node_object(), pods=pods)).num_usable == 8


def test_allocatable_counts_not_capacity_and_the_difference_is_told() -> None:
    told = found(node_object(allocatable={"nvidia.com/gpu": "6"}))
    assert only(told).num_gpus == 6
    assert "2 of its 8" in told.notices[0].detail


def test_a_node_whose_gpus_are_all_gone_for_now_is_lost_not_absent() -> None:
    node = only(found(node_object(allocatable={"nvidia.com/gpu": "0"})))
    assert (node.num_gpus, node.state) == (8, NodeState.LOST)


def test_gpus_whose_workers_find_no_host_memory_are_left_out_and_told() -> None:
    told = found(node_object(memory="40Gi"))
    assert only(told).num_gpus == 5
    assert "host_memory_per_gpu" in told.notices[0].remedy
    others = (pod_object("big", "gpu-1", {"memory": "990Gi"}),)
    assert only(found(node_object(), pods=others)).num_usable == (1024 - 990) // 8


def test_gpus_whose_pods_find_no_room_on_the_disk_are_left_out_and_told() -> None:
    small = node_object(allocatable={"ephemeral-storage": "50Gi"})
    rules = replace(RULES, ephemeral_storage_request_bytes=10 * GIB)
    told = found(small, rules=rules)
    assert (only(told).num_gpus, only(told).num_usable) == (5, 5)
    assert "5 of its 8 GPUs" in told.notices[0].detail and "ephemeral_storage_request" in told.notices[0].remedy
    others = (pod_object("hoarder", "gpu-1", {"ephemeral-storage": "25Gi"}),)
    assert (only(found(small, pods=others, rules=rules)).num_usable) == 2
    ours = (our_pod("own", "gpu-1", {"ephemeral-storage": "25Gi"}, "gpu-1"),)
    assert only(found(small, pods=ours, rules=rules)).num_usable == 5


def test_a_common_disk_is_enough_by_default_and_a_request_is_never_more_than_the_limit() -> None:
    told = found(node_object(allocatable={"ephemeral-storage": "18242267924"}))  # of a node with a disk of 20 GB
    assert (only(told).num_usable, told.notices) == (8, ())
    tight = replace(RULES, ephemeral_storage_bytes=GIB)
    assert tight.requested_disk_bytes == GIB


def test_requests_are_what_the_scheduler_counts() -> None:
    spec = {
        "containers": [
            {"resources": {"requests": {"cpu": "1"}}},
            {"resources": {"limits": {"cpu": "500m", "x/y": "2"}}},
        ],
        "initContainers": [
            {"resources": {"requests": {"cpu": "4"}}},
            {"restartPolicy": "Always", "resources": {"requests": {"memory": "1Ki"}}},
        ],
        "overhead": {"cpu": "250m"},
    }
    assert pod_requests(spec) == {"cpu": 4.25, "x/y": 2, "memory": 1024}


def test_an_early_container_needs_the_sidecars_before_it_and_no_others() -> None:
    def asking(cpus: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpus}}, **more}

    sidecar = asking("1", restartPolicy="Always")
    spec = {"containers": [asking("2")], "initContainers": [asking("4"), sidecar, asking("3500m"), sidecar]}
    assert pod_requests(spec) == {"cpu": 4.5}


def test_what_a_pod_asks_for_as_a_whole_takes_the_place_of_its_containers() -> None:
    container = {"resources": {"requests": {"cpu": "1", "memory": "1Ki", "nvidia.com/gpu": "2"}}}
    whole = {
        "requests": {"cpu": "6", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "9"},
        "limits": {"cpu": "8", "memory": "64Gi"},
    }
    asked = pod_requests({"containers": [container], "resources": whole, "overhead": {"cpu": "250m"}})
    assert asked == {"cpu": 6.25, "memory": 1024, "nvidia.com/gpu": 2, "hugepages-2Mi": 4 * MIB}
    assert pod_requests({"containers": [{}], "resources": {"limits": {"memory": "1Gi"}}}) == {"memory": GIB}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7910m", 7.91),
        ("16Gi", 16 * GIB),
        ("1e3", 1000),
        ("0", 0),
        ("1k", 1000),
        ("128974848", 128974848),
        ("5E", 5e18),
        ("2n", 2e-9),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, number: float) -> None:
    assert parse_quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Q", "one"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_quantity(text)


# which nodes take work


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> dict[str, str]:
    return {"key": key, "effect": effect, "value": value}


@pytest.mark.parametrize(
    ("given_", "state"),
    [
        ({}, NodeState.READY),
        ({"cordoned": True, "taints": [taint("node.kubernetes.io/unschedulable")]}, NodeState.DRAINING),
        ({"ready": False}, NodeState.LOST),
        ({"taints": [taint("node.kubernetes.io/unreachable", "NoExecute")]}, NodeState.LOST),
        ({"taints": [taint("node.kubernetes.io/disk-pressure")]}, NodeState.DRAINING),
        ({"taints": [taint("ToBeDeletedByClusterAutoscaler", value="1700000000")]}, NodeState.DRAINING),
        ({"taints": [taint("karpenter.sh/disrupted")]}, NodeState.DRAINING),
        ({"taints": [taint("nvidia.com/gpu", value="present")]}, NodeState.READY),
        ({"taints": [taint("team", "PreferNoSchedule")]}, NodeState.READY),
    ],
)
def test_a_node_that_is_ill_or_going_takes_no_new_work(given_: dict[str, Any], state: NodeState) -> None:
    assert only(found(node_object(**given_))).state is state


def test_a_node_that_is_kept_for_others_is_left_out_and_said_why() -> None:
    reserved = node_object(taints=[taint("team", value="vision")])
    told = found(reserved)
    assert told.cluster.nodes == ()
    assert "team=vision:NoSchedule" in told.notices[0].detail
    tolerating = replace(RULES, tolerations=(Toleration(key="team", operator=TolerationOperator.EXISTS),))
    assert only(found(reserved, rules=tolerating)).state is NodeState.READY


def test_a_tainted_node_without_gpus_is_nobodys_business() -> None:
    assert (
        found(node_object(resources={}, labels={}, taints=[taint("node-role.kubernetes.io/control-plane")])).notices
        == ()
    )


def test_nodes_that_the_rules_do_not_select_are_left_out() -> None:
    selecting = replace(RULES, node_selector={"pool": "training"})
    told = found(node_object("a"), node_object("b", labels={**A100, "pool": "training"}), rules=selecting)
    assert [each.name for each in told.cluster.nodes] == ["b"]


def test_a_new_node_without_a_status_is_lost_until_it_has_one() -> None:
    bare = {"metadata": {"name": "new", "labels": A100}, "spec": {}, "status": {}}
    assert found(bare).cluster.nodes == ()


# autoscaled groups

GROUP = NodeGroup(
    template=Node(
        name="pool-a",
        gpu_type="a100-80",
        num_gpus=8,
        host_memory_bytes=512 * GIB,
        num_cpus=90,
        labels={"cloud.google.com/gke-nodepool": "pool-a"},
    ),
    max_nodes=3,
)
DECLARED = Declared(gpu_types={"a100-80": CATALOGUE["a100-80"].gpu}, groups=(GROUP,))
OF_THE_GROUP = {**A100, "cloud.google.com/gke-nodepool": "pool-a"}


def names(told: Any) -> list[str]:
    return [each.name for each in told.cluster.nodes]


def test_a_group_at_zero_offers_all_that_it_may_become() -> None:
    told = found(declared=DECLARED)
    assert names(told) == ["pool-a/1", "pool-a/2", "pool-a/3"]
    assert told.cluster.num_gpus_by_type == {"a100-80": 24}
    assert {each.labels[labels.NODE_GROUP] for each in told.cluster.nodes} == {"pool-a"}
    assert {each.host_memory_bytes for each in told.cluster.nodes} == {(512 - 8 * 8) * GIB}


def test_machines_that_came_are_no_longer_offered() -> None:
    told = found(node_object("real-1", labels=OF_THE_GROUP), node_object("real-2", labels=A100), declared=DECLARED)
    assert names(told) == ["real-1", "real-2", "pool-a/1", "pool-a/2"]


def test_a_pod_that_waits_for_its_machine_keeps_its_name() -> None:
    waiting = our_pod("p", None, EIGHT, placed_on="pool-a/3", phase="Pending")
    assert names(found(pods=(waiting,), declared=DECLARED)) == ["pool-a/1", "pool-a/2", "pool-a/3"]


def test_a_pod_that_got_its_machine_is_counted_off_there_and_keeps_its_name() -> None:
    running = our_pod("p", "real-1", {"nvidia.com/gpu": "5"}, placed_on="pool-a/3")
    told = found(node_object("real-1", labels=OF_THE_GROUP), pods=(running,), declared=DECLARED)
    assert names(told) == ["real-1", "pool-a/1", "pool-a/2", "pool-a/3"]
    assert told.cluster.nodes_by_name["real-1"].num_usable == 3


@given(
    existing=st.integers(0, 5),
    waiting=st.sets(st.integers(1, 3)),
    running=st.sets(st.integers(1, 3)),
)
def test_a_group_never_offers_more_than_it_may_become(existing: int, waiting: set[int], running: set[int]) -> None:
    running -= waiting
    running = set(sorted(running)[:existing])
    nodes = [node_object(f"real-{index}", labels=OF_THE_GROUP) for index in range(existing)]
    pods = [our_pod(f"w{each}", None, EIGHT, placed_on=f"pool-a/{each}", phase="Pending") for each in waiting]
    pods += [
        our_pod(f"r{each}", f"real-{index}", EIGHT, placed_on=f"pool-a/{each}") for index, each in enumerate(running)
    ]
    told = found(*nodes, pods=tuple(pods), declared=DECLARED)
    offered = [each for each in names(told) if each.startswith("pool-a/")]
    assert {f"pool-a/{each}" for each in waiting | running} <= set(offered)
    not_held = len(offered) - len(waiting) - len(running)
    assert not_held == min(max(0, 3 - existing - len(waiting)), 3 - len(waiting) - len(running))


def test_every_node_has_a_known_type_and_a_name_of_its_own() -> None:
    nodes = [node_object(each["name"], labels=each["labels"], resources=each["resources"]) for each in FIXTURES]
    cluster = found(*nodes, declared=DECLARED).cluster
    assert len(cluster.nodes_by_name) == len(cluster.nodes)
    assert {each.gpu_type for each in cluster.nodes} == set(cluster.types_by_name)
    assert all(each.num_usable <= each.num_gpus for each in cluster.nodes)


def test_rules_with_another_namespace_know_other_pods_as_ours() -> None:
    pods = (our_pod("ours", "gpu-1", EIGHT, placed_on="gpu-1", namespace="elsewhere"),)
    assert only(found(node_object(), pods=pods)).num_usable == 0
    assert only(found(node_object(), pods=pods, rules=PodRules(image="a", namespace="elsewhere"))).num_usable == 8
