"""Nodes without machines: what a test says of them, and the Node objects that the API server gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.kubernetes.pod_status import timestamp

GPU: Final = "nvidia.com/gpu"
FAKE: Final = "frenzy.test/fake"
_HOST: Final = {"cpu": "96", "memory": "1024Gi", "ephemeral-storage": "1000Gi", "pods": "110"}
_NODE_INFO: Final = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeNode:
    """One node. ``labels`` come on top of the name, OS and architecture that every kubelet sets.

    ``resources`` are added to (or replace) a host's: extended resources such as ``nvidia.com/gpu``, as strings.
    ``taints`` are as in the API: ``{"key": ..., "value": ..., "effect": ...}``.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    is_cordoned: bool = False


def gpu_nodes(
    prefix: str,
    count: int,
    *,
    product: str,
    memory_mib: int,
    gpus: int = 8,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Mapping[str, str], ...] = (),
) -> tuple[FakeNode, ...]:
    """``count`` equal nodes ``<prefix>-0``, ``<prefix>-1``..., labelled as NVIDIA's GPU feature discovery does."""
    discovered = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.count": str(gpus),
        **(labels or {}),
    }
    return tuple(
        FakeNode(name=f"{prefix}-{index}", labels=discovered, resources={GPU: str(gpus)}, taints=taints)
        for index in range(count)
    )


def node_object(node: FakeNode, *, owner: str, address: str, port: int, now_s: float) -> dict[str, Any]:
    """The Node as a kubelet registers it; its kubelet listens at ``address`` and ``port``."""
    usual = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    resources = {**_HOST, **node.resources}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {**usual, **node.labels, FAKE: owner}},
        "spec": {"taints": [dict(each) for each in node.taints], "unschedulable": node.is_cordoned},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions("True", "KubeletReady", now_s),
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": node.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": dict.fromkeys(_NODE_INFO, ""),
        },
    }


def conditions(ready: str, reason: str, now_s: float) -> list[dict[str, str]]:
    """``ready`` is "True", "False", or "Unknown" as the node controller says of a silent node."""
    pressure = "False" if ready == "True" else ready
    states = {"Ready": ready, **dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure"), pressure)}
    at = timestamp(now_s)
    return [
        {
            "type": name,
            "status": status,
            "reason": reason if name == "Ready" else "FakeNode",
            "message": "",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for name, status in states.items()
    ]


def lease_object(name: str, *, owner_uid: str, microtime: str) -> dict[str, Any]:
    """The heartbeat of a kubelet; the garbage collector takes it away with its node."""
    node = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [node]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": microtime},
    }
