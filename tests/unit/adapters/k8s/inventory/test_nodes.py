"""The inventory from Node objects and pods: what is free, which nodes take work, and groups that may grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.k8s.cluster_objects import A100, NODES, RULES, found, node_object, only, our_pod, pod_object

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.inventory.kinds import Kind, kinds_of
from frenzy.adapters.k8s.inventory.nodes import Declared, nodes_as_declared
from frenzy.adapters.k8s.objects import NodeFacts
from frenzy.adapters.k8s.pod_rules import Architecture, PodRules, Toleration, TolerationOperator
from frenzy.adapters.k8s.torch_builds import TorchBuild
from frenzy.core.values.cluster import Cluster, Node, NodeGroup, NodeState
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.units import GIB

EIGHT = {"nvidia.com/gpu": "8"}


def test_a_node_that_makes_no_sense_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(machine: NodeFacts, *rest: Any) -> Iterator[Kind]:
        if machine.name == "odd":
            raise ZeroDivisionError("division by zero")
        return kinds_of(machine, *rest)

    monkeypatch.setattr("frenzy.adapters.k8s.inventory.nodes.kinds_of", refusing)
    told = found(node_object("gpu-1"), node_object("odd"), node_object("zeta"))
    assert [each.name for each in told.cluster.nodes] == ["gpu-1", "zeta"]
    (notice,) = told.notices
    assert (notice.node, "ZeroDivisionError" in notice.detail) == ("odd", True)


def test_an_error_that_no_label_can_cause_takes_no_node_out_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Iterator[Kind]:
        raise AttributeError("a slip of ours")

    monkeypatch.setattr("frenzy.adapters.k8s.inventory.nodes.kinds_of", broken)
    with pytest.raises(AttributeError):
        found(node_object("gpu-1"))


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
    assert node.host_memory_bytes == (1024 - 65 - 4 * 2) * GIB


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
    told = found(node_object(memory="10Gi"))
    assert only(told).num_gpus == 5
    assert "extra_host_memory_per_gpu" in told.notices[0].remedy
    others = (pod_object("big", "gpu-1", {"memory": "1015Gi"}),)
    assert only(found(node_object(), pods=others)).num_usable == (1024 - 1015) // 2


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
    assert {each.host_memory_bytes for each in told.cluster.nodes} == {(512 - 8 * 2) * GIB}


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


def test_a_group_of_cards_that_the_image_has_no_kernels_for_is_left_out_and_said_why() -> None:
    of_v100s = replace(GROUP, template=replace(GROUP.template, gpu_type="v100-16"))
    declared = Declared(gpu_types={"v100-16": CATALOGUE["v100-16"].gpu}, groups=(of_v100s,))
    told = found(declared=declared)
    assert (names(told), [each.node for each in told.notices]) == ([], ["pool-a"])
    older = replace(RULES, torch_build=TorchBuild.CU126)
    assert len(names(found(declared=declared, rules=older))) == 3


def test_a_node_of_the_processor_that_the_image_is_also_built_for_takes_work() -> None:
    arm = node_object(labels={**A100, labels.ARCHITECTURE: "arm64"})
    assert found(arm).cluster.nodes == ()
    both = replace(RULES, architectures=(Architecture.AMD64, Architecture.ARM64))
    assert only(found(arm, rules=both)).state is NodeState.READY


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
    nodes = [node_object(each["name"], labels=each["labels"], resources=each["resources"]) for each in NODES]
    cluster = found(*nodes, declared=DECLARED).cluster
    assert len(cluster.nodes_by_name) == len(cluster.nodes)
    assert {each.gpu_type for each in cluster.nodes} == set(cluster.types_by_name)
    assert all(each.num_usable <= each.num_gpus for each in cluster.nodes)


def test_rules_with_another_namespace_know_other_pods_as_ours() -> None:
    pods = (our_pod("ours", "gpu-1", EIGHT, placed_on="gpu-1", namespace="elsewhere"),)
    assert only(found(node_object(), pods=pods)).num_usable == 0
    assert only(found(node_object(), pods=pods, rules=PodRules(image="a", namespace="elsewhere"))).num_usable == 8


def test_nodes_of_the_cluster_file_that_the_image_has_no_kernels_for_are_left_out_where_nodes_may_not_be_listed() -> (
    None
):
    types = {name: CATALOGUE[name].gpu for name in ("a100-80", "v100-16")}
    nodes = tuple(replace(GROUP.template, name=f"with-{name}", gpu_type=name) for name in types)
    told = nodes_as_declared(Cluster(tuple(types.values()), nodes), RULES)
    assert names(told) == ["with-a100-80"]
    assert [each.node for each in told.notices] == ["all nodes", "with-v100-16"]


# topology


def test_a_node_is_part_of_what_its_labels_say_the_widest_first() -> None:
    near = {
        "nvidia.com/gpu.clique": "7f1b.0",
        "cloud.google.com/gce-topology-subblock": "s",
        "topology.kubernetes.io/zone": "eu-1a",
        "cloud.google.com/gce-topology-block": "b",
        "topology.kubernetes.io/rack": "",
    }
    assert only(found(node_object(labels=A100 | near))).topology == (
        "topology.kubernetes.io/zone=eu-1a",
        "cloud.google.com/gce-topology-block=b",
        "cloud.google.com/gce-topology-subblock=s",
        "nvidia.com/gpu.clique=7f1b.0",
    )


def test_the_pod_rules_name_other_labels_in_the_place_of_the_known_ones() -> None:
    near = {"topology.kubernetes.io/zone": "eu-1a", "example.org/rack": "r1", "example.org/row": "2"}
    rules = replace(RULES, topology=("example.org/row", "example.org/rack"))
    node = only(found(node_object(labels=A100 | near), rules=rules))
    assert node.topology == ("example.org/row=2", "example.org/rack=r1")


def test_nodes_of_a_cluster_file_say_it_themselves_or_by_their_labels() -> None:
    said = Node(name="n1", gpu_type="t4", num_gpus=1, host_memory_bytes=64 * GIB, num_cpus=8, topology=("r1",))
    labelled = replace(said, name="n2", topology=(), labels={"topology.kubernetes.io/zone": "a"})
    told = nodes_as_declared(Cluster((CATALOGUE["t4"].gpu,), (said, labelled)), RULES)
    assert [each.topology for each in told.cluster.nodes] == [("r1",), ("topology.kubernetes.io/zone=a",)]
