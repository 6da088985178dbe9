"""Node and Pod objects as an API server lists them, with only what matters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.inventory.nodes import Declared, Found, nodes_from
from frenzy.adapters.k8s.objects import NodeFacts, PodUse
from frenzy.adapters.k8s.pod_rules import PodRules
from frenzy.core.values.cluster import Node

# Nodes as clouds and drivers label them, each with its source and what it is to be taken for.
NODES = yaml.safe_load((Path(__file__).parents[3] / "data/kubernetes/nodes.yaml").read_text(encoding="utf-8"))
RULES = PodRules(image="trainer:1", namespace="train")
A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
}


def node_object(name: str = "gpu-1", **given: Any) -> dict[str, Any]:
    """labels, resources, allocatable (by resource), taints, ready, cordoned, cpu, memory."""
    capacity = {"cpu": given.get("cpu", "96"), "memory": given.get("memory", "1024Gi"), "pods": "110"}
    capacity |= given.get("resources", {"nvidia.com/gpu": "8"})
    spec: dict[str, Any] = {"taints": given.get("taints", [])}
    if given.get("cordoned"):
        spec["unschedulable"] = True
    return {
        "metadata": {"name": name, "labels": {labels.HOSTNAME: name, **given.get("labels", A100)}},
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": {**capacity, **given.get("allocatable", {})},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True" if given.get("ready", True) else "Unknown"},
            ],
        },
    }


def pod_object(name: str, node: str | None, requests: Mapping[str, str], **given: Any) -> dict[str, Any]:
    """namespace, labels, annotations, phase, init (requests of an init container)."""
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": dict(requests)}}]}
    if node is not None:
        spec["nodeName"] = node
    if "init" in given:
        spec["initContainers"] = [{"name": "first", "resources": {"requests": given["init"]}}]
    return {
        "metadata": {
            "name": name,
            "namespace": given.get("namespace", "other"),
            "labels": given.get("labels", {}),
            "annotations": given.get("annotations", {}),
        },
        "spec": spec,
        "status": {"phase": given.get("phase", "Running")},
    }


def our_pod(name: str, node: str | None, requests: Mapping[str, str], placed_on: str, **given: Any) -> dict[str, Any]:
    given.setdefault("namespace", RULES.namespace)
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.RUN: "r1", labels.ATTEMPT: "1"}
    return pod_object(name, node, requests, labels=marks, annotations={labels.PLACED_ON: placed_on}, **given)


def found(
    *nodes: dict[str, Any],
    pods: tuple[dict[str, Any], ...] = (),
    rules: PodRules = RULES,
    declared: Declared | None = None,
) -> Found:
    """What the inventory makes of these objects."""
    return nodes_from(
        (NodeFacts.of(each) for each in nodes), (PodUse.of(each) for each in pods), rules, declared or Declared()
    )


def only(found_: Found) -> Node:
    (node,) = found_.cluster.nodes
    return node
