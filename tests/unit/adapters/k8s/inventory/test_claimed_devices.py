"""GPUs of dynamic resource allocation: what claims hold is held, what a class names is offered."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.adapters.k8s.cluster_objects import RULES, node_object, pod_object

from frenzy.adapters.k8s.inventory.claimed_devices import (
    Allocation,
    ClaimUse,
    SliceFacts,
    class_resource,
    with_allocation,
)
from frenzy.adapters.k8s.inventory.nodes import Declared, Found, nodes_from
from frenzy.adapters.k8s.objects import NodeFacts, PodUse

Json = dict[str, Any]
RECORDED = yaml.safe_load((Path(__file__).parents[4] / "data/kubernetes/devices.yaml").read_text(encoding="utf-8"))
PLUGIN = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.count": "2",
}


def recorded(kind: str) -> Json:
    """A copy that a test may change."""
    found: Json = copy.deepcopy(RECORDED[kind])
    return found


def found(node: Json, *objects: Json, pods: tuple[Json, ...] = ()) -> Found:
    """What the inventory makes of ``node`` with these objects of resource.k8s.io."""

    def of(kind: str) -> list[Json]:
        return [each for each in objects if each["kind"] == kind]

    allocation = Allocation(
        slices=tuple(map(SliceFacts.of, of("ResourceSlice"))),
        claims=tuple(map(ClaimUse.of, of("ResourceClaim"))),
        resources=tuple(filter(None, map(class_resource, of("DeviceClass")))),
    )
    nodes, uses = with_allocation([NodeFacts.of(node)], [PodUse.of(each) for each in pods], allocation)
    return nodes_from(nodes, uses, RULES, Declared())


def with_plugin() -> Json:
    return node_object(labels=PLUGIN, resources={"nvidia.com/gpu": "2"})


def without_plugin() -> Json:
    return node_object(labels={}, resources={})


def counts(made: Found) -> tuple[str, int, int]:
    """Type, GPUs and usable GPUs of the one node."""
    (node,) = made.cluster.nodes
    return node.gpu_type, node.num_gpus, node.num_usable


def test_gpu_that_a_claim_holds_is_not_free_where_a_device_plugin_offers_it() -> None:
    assert counts(found(with_plugin(), recorded("slice"))) == ("h100", 2, 2)
    assert counts(found(with_plugin(), recorded("slice"), recorded("claim"))) == ("h100", 2, 1)


def test_claim_that_is_not_allocated_holds_nothing() -> None:
    claim = recorded("claim")
    claim["status"] = {}
    assert counts(found(with_plugin(), recorded("slice"), claim)) == ("h100", 2, 2)


@pytest.mark.parametrize(
    "change",
    [{"adminAccess": True}, {"driver": "nic.example.com"}, {"pool": "another-node"}, {"device": "gpu-of-another-time"}],
    ids=["watches all", "another driver", "another pool", "a device that is gone"],
)
def test_claim_of_something_else_holds_no_gpu_of_the_node(change: Json) -> None:
    claim = recorded("claim")
    claim["status"]["allocation"]["devices"]["results"][0].update(change)
    assert counts(found(with_plugin(), recorded("slice"), claim)) == ("h100", 2, 2)


def test_claim_that_the_scheduler_made_for_a_request_is_counted_once() -> None:
    claim = recorded("claim")
    claim["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-name": "nvidia.com/gpu"}
    pod = pod_object("notebook", "gpu-1", {"nvidia.com/gpu": "1"}, namespace="research")
    objects = (recorded("slice"), recorded("class"), claim)
    assert counts(found(without_plugin(), *objects, pods=(pod,))) == ("h100", 2, 1)


def test_node_without_a_plugin_offers_what_a_class_names_as_its_extended_resource() -> None:
    made = found(without_plugin(), recorded("slice"), recorded("class"), recorded("claim"))
    assert counts(made) == ("h100", 2, 1)
    (gpu,) = made.cluster.gpu_types
    assert gpu.compute_capability == "9.0"
    assert made.notices == ()


def test_node_without_a_plugin_offers_nothing_where_no_class_names_the_resource() -> None:
    nameless = recorded("class")
    del nameless["spec"]["extendedResourceName"]
    for objects in ((recorded("slice"),), (recorded("slice"), nameless)):
        assert found(without_plugin(), *objects).cluster.nodes == ()


def test_driver_that_a_slice_tells_is_held_to_the_image() -> None:
    old = recorded("slice")
    for device in old["spec"]["devices"]:
        device["attributes"]["driverVersion"] = {"version": "535.1.0"}
    made = found(without_plugin(), old, recorded("class"))
    assert made.cluster.nodes == ()
    assert "Its driver is 535" in made.notices[0].detail


def test_device_with_a_taint_cannot_be_had() -> None:
    tainted = recorded("slice")
    tainted["spec"]["devices"][0]["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute"}]
    made = found(without_plugin(), tainted, recorded("class"))
    assert counts(made) == ("h100", 1, 1)
    assert "1 of its 2 nvidia.com/gpu cannot be allocated." in made.notices[0].detail


def test_slices_of_an_older_generation_do_not_count() -> None:
    old = recorded("slice")
    old["spec"]["pool"]["generation"] = 1
    assert counts(found(without_plugin(), recorded("slice"), old, recorded("class"))) == ("h100", 2, 2)


def test_mig_slices_are_not_offered_as_whole_gpus() -> None:
    sliced = recorded("slice")
    for device in sliced["spec"]["devices"]:
        device["attributes"]["type"] = {"string": "mig"}
    assert found(without_plugin(), sliced, recorded("class")).cluster.nodes == ()


def test_cluster_without_the_api_is_as_it_was() -> None:
    nodes, pods = [NodeFacts.of(with_plugin())], [PodUse.of(pod_object("p", "gpu-1", {"nvidia.com/gpu": "1"}))]
    assert with_allocation(nodes, pods, Allocation()) == (nodes, pods)
