"""Clusters by name, from a cluster file, or from a list of nodes.

The list of 1,213 nodes is Alibaba's GPU trace of 2023: nodes with their CPUs, host memory, GPUs and
GPU model. Five of its seven models are cards of the catalogue. ``G2`` and ``G3`` are the company's
own names for cards it does not disclose; the simulator published with the trace counts them with
20,000 and 30,000 MiB. Here they keep that memory and are taken to run like an A10 (nodes of 8 with 96
CPUs and 384 GiB) and like a PCIe A100 (nodes of 8 with 128 CPUs and 768 GiB): an assumption.
Its networks are not known either; the time model's default for a node holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from frenzy.adapters.spec.cluster_file import load_cluster
from frenzy.core.values.cluster import Cluster, Node
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.hardware import GpuType
from frenzy.core.values.units import MIB
from frenzy.settings import CHECKOUT
from frenzy.sim.input_tables import Row, read_table
from frenzy.sim.traces import absent, stem

NODE_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("name", "node", "sn"),
    "model": ("gpu_type", "model"),
    "gpus": ("gpus", "num_gpus", "gpu"),
    "millicpus": ("cpu_milli",),
    "memory_mib": ("memory_mib",),
}
CLUSTERS: Final[Mapping[str, Path]] = {
    "44": CHECKOUT / "include/data/clusters/sia-44.yaml",
    "64": CHECKOUT / "include/data/clusters/sia-64.yaml",
    "288": CHECKOUT / "include/clusters/frenzy-paper-288.yaml",
    "6212": CHECKOUT / "include/data/clusters/openb_nodes.csv",
}
# The models of the node list and of the pods that belong to it, as GPU types of the cluster.
OPENB_TYPES: Final[Mapping[str, str]] = {
    "T4": "t4",
    "P100": "p100-16",
    "V100M16": "v100-16",
    "V100M32": "v100-32",
    "A10": "a10",
    "G2": "g2",
    "G3": "g3",
}
_UNDISCLOSED: Final = {
    "g2": replace(CATALOGUE["a10"].gpu, name="g2", memory_bytes=20_000 * MIB),
    "g3": replace(CATALOGUE["a100-40-pcie"].gpu, name="g3", memory_bytes=30_000 * MIB),
}


def cluster_named(name: str) -> Cluster:
    """The cluster called ``name``, or the one in the cluster file or list of nodes (CSV) of that path.

    Raises SpecError.
    """
    path = CLUSTERS.get(name, Path(name))
    if not path.is_file():
        allowed = (
            f"one of {', '.join(CLUSTERS)}, a cluster file or a CSV file of nodes; there is no file {absent(path)}"
        )
        raise SpecError([Violation(path="cluster", value=repr(name), allowed=allowed)])
    return read_nodes(path) if path.suffix in (".csv", ".gz") else load_cluster(path)


def cluster_label(name: str) -> str:
    """How results call the cluster ``name``: a path by its file's name."""
    return name if name in CLUSTERS else stem(Path(name))


def read_nodes(path: Path) -> Cluster:
    """The cluster whose nodes are the rows of the CSV file at ``path``. Raises SpecError."""
    types: dict[str, GpuType] = {}
    nodes: dict[str, Node] = {}
    for row in read_table(path, NODE_COLUMNS, required=tuple(NODE_COLUMNS)):
        gpu_type = _gpu_type(row)
        node = _node(row, gpu_type)
        if node.name in nodes:
            raise row.refusal("name", "a name of its own for each node")
        types[gpu_type.name], nodes[node.name] = gpu_type, node
    return Cluster(tuple(types[name] for name in sorted(types)), tuple(nodes.values()))


def _gpu_type(row: Row) -> GpuType:
    model = row.text("model") or ""
    name = OPENB_TYPES.get(model, model)
    if name in _UNDISCLOSED:
        return _UNDISCLOSED[name]
    if name not in CATALOGUE:
        raise row.refusal("model", f"one of {', '.join((*OPENB_TYPES, *CATALOGUE))}")
    return CATALOGUE[name].gpu


def _node(row: Row, gpu_type: GpuType) -> Node:
    name, num_gpus = row.text("name"), row.whole("gpus")
    millicpus, memory_mib = row.number("millicpus"), row.whole("memory_mib")
    if not name:
        raise row.refusal("name", "a name")
    if not num_gpus:
        raise row.refusal("gpus", "at least 1")
    if not millicpus:
        raise row.refusal("millicpus", "more than 0")
    if not memory_mib:
        raise row.refusal("memory_mib", "more than 0")
    return Node(
        name=name,
        gpu_type=gpu_type.name,
        num_gpus=num_gpus,
        host_memory_bytes=memory_mib * MIB,
        num_cpus=millicpus / 1000,
    )
