"""The cluster file: GPU types and nodes in YAML, checked at the edge.

    gpu_types:
      small:                    # a virtual GPU: its memory budget and the rate it is held to
        kind: virtual
        memory: 384 MiB
        flops: 20 GFLOPS
      a100-80:                  # in the catalogue: nothing more is needed, any field may be changed
        price_per_hour: 1.8
      spot-t4: {card: t4}       # a catalogue card under another name
    nodes:
      - {name: lap, count: 2, gpu_type: small, gpus: 2, cpus: 4, host_memory: 8 GiB}
      - {name: "rack{i:02}-a", count: 8, gpu_type: a100-80, gpus: 8, cpus: 128, host_memory: 1 TiB}
    autoscaled:                 # nodes that an autoscaler adds when pods need them, and their labels in Kubernetes
      - {name: spot, max_nodes: 4, gpu_type: spot-t4, gpus: 1, labels: {cloud.google.com/gke-nodepool: spot}}

A node with a count above 1 and no ``{i}`` in its name gets ``-1``, ``-2`` ... appended. Without
``cpus`` a node has 8 for each GPU, without ``host_memory`` four times its GPUs' memory and at least
16 GiB. A node holds GPUs of one type, hence virtual and real ones never share a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from frenzy.adapters.spec.refusals import Location, file_text, one_of, refused, shown, violations_of
from frenzy.adapters.spec.yaml_core import FILE, load_yaml
from frenzy.core.values.cluster import Cluster, Node, NodeGroup, NodeState
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.gpu_catalogue import CATALOGUE, card_called
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.units import GIB, parse_memory

DEFAULT_CPUS_PER_GPU: Final = 8.0
DEFAULT_HOST_TO_GPU_MEMORY: Final = 4
LEAST_DEFAULT_HOST_BYTES: Final = 16 * GIB
MAX_NODES: Final = 100_000

_RATE: Final = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([kKMGTP]?)\s*([A-Za-z/]*)\s*$")
_RATE_FACTORS: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_FLOPS: Final = frozenset({"", "flops", "flop/s", "flops/s"})
# A small b is a bit: networks are sold by them.
_BANDWIDTHS: Final = {"": 1.0, "B/s": 1.0, **dict.fromkeys(("bit/s", "b/s", "bps"), 1 / 8)}
_LEAST_BARE_RATE: Final = 1e6
_INDEX: Final = re.compile(r"\{i(?::0([1-9]))?\}")
_NAME: Final = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """What a cluster file says. gpu_types: by name, also those without nodes; nodes: without those of groups."""

    gpu_types: Mapping[str, GpuType]
    nodes: tuple[Node, ...]
    groups: tuple[NodeGroup, ...]

    @property
    def cluster(self) -> Cluster:
        """The whole cluster, its groups as large as they may become."""
        added = (node for group in self.groups for node in group.nodes)
        return Cluster(tuple(self.gpu_types.values()), (*self.nodes, *added))


def load_cluster(path: str | Path) -> Cluster:
    """The cluster described by the YAML file at ``path``.

    Raises SpecError with every violation: the path of the field, its value, what is allowed.
    """
    return _with_nodes(load_cluster_file(path))


def load_cluster_file(path: str | Path) -> ClusterFile:
    """What the YAML file at ``path`` says. Raises SpecError as ``load_cluster`` does."""
    return parse_cluster_file(file_text(path, "cluster file"), source=str(path))


def parse_cluster(text: str, *, source: str = "cluster file") -> Cluster:
    """The cluster described by YAML ``text``. Raises SpecError as ``load_cluster`` does."""
    return _with_nodes(parse_cluster_file(text, source=source))


def _with_nodes(file: ClusterFile) -> Cluster:
    """A file without nodes describes types for a cluster that tells its nodes itself, but is none."""
    if not file.nodes and not file.groups:
        raise refused("nodes", "nothing", "give at least one node here or under autoscaled")
    return file.cluster


def parse_cluster_file(text: str, *, source: str = "cluster file") -> ClusterFile:
    """What YAML ``text`` says. Raises SpecError as ``load_cluster`` does."""
    try:
        document = load_yaml(text, FILE)
    except SpecError as error:
        raise SpecError(replace(each, path=f"{source}, {each.path}") for each in error.violations) from error
    if not isinstance(document, dict):
        raise refused(source, shown(document), "write a mapping with gpu_types and nodes")
    try:
        file = _ClusterFile.model_validate(document)
    except ValidationError as error:
        raise SpecError(violations_of(error, _fields_at, "cluster file")) from error
    return _read(file)


class ClusterFileInventory:
    """The inventory of a cluster that is described by a file; read anew each time it is asked."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def cluster(self) -> Cluster:
        """The GPU types and nodes in the file. Raises SpecError."""
        return load_cluster(self._path)


def _whole_bytes(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("write a size, for example '640 MiB' or '24 GiB'")
    return parse_memory(value)


def _flops(value: object) -> float:
    """``"40 GFLOPS"`` or a plain number, per second."""
    return _rate(value, lambda unit: 1.0 if unit.lower() in _FLOPS else None, "'40 GFLOPS' or '312 TFLOPS'", "TFLOPS")


def _bandwidth(value: object) -> float:
    """Bytes per second of ``"2 TB/s"``, ``"400 Gbit/s"`` or a plain number."""
    return _rate(value, _BANDWIDTHS.get, "'900 GB/s' or '400 Gbit/s'", "GB/s")


def _rate(value: object, factor_of: Callable[[str], float | None], examples: str, usual: str) -> float:
    """None so small that its unit was forgotten."""
    match = _RATE.match(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    factor = None if match is None else factor_of(match[3])
    if match is None or factor is None:
        raise ValueError(f"write a rate, for example {examples}")
    rate = float(match[1]) * _RATE_FACTORS[match[2]] * factor
    if rate < _LEAST_BARE_RATE and not match[2] + match[3]:
        raise ValueError(f"{value} without a unit is {value} a second; write {value} {usual}")
    return rate


_Size = Annotated[int, BeforeValidator(_whole_bytes), Field(gt=0)]
_Flops = Annotated[float, BeforeValidator(_flops), Field(gt=0, allow_inf_nan=False)]
_Bandwidth = Annotated[float, BeforeValidator(_bandwidth), Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(pattern=_NAME)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _TypeEntry(_Strict):
    """The fields of a GpuType, named as the file names them."""

    card: str | None = None
    kind: DeviceKind | None = None
    memory_bytes: Annotated[_Size | None, Field(alias="memory")] = None
    flops_per_s: Annotated[_Flops | None, Field(alias="flops")] = None
    bf16_flops_per_s: Annotated[_Flops | None, Field(alias="bf16_flops")] = None
    tf32_flops_per_s: Annotated[_Flops | None, Field(alias="tf32_flops")] = None
    fp32_flops_per_s: Annotated[_Flops | None, Field(alias="fp32_flops")] = None
    memory_bandwidth_bytes_per_s: Annotated[_Bandwidth | None, Field(alias="memory_bandwidth")] = None
    link_bytes_per_s: Annotated[_Bandwidth | None, Field(alias="link")] = None
    node_link_bytes_per_s: Annotated[_Bandwidth | None, Field(alias="node_link")] = None
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]$")] | None = None
    power_w: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    price_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _Machine(_Strict):
    name: Annotated[str, Field(min_length=1, max_length=63)]
    gpu_type: str
    gpus: Annotated[int, Field(ge=1, le=1024, strict=True)]
    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    host_memory: _Size | None = None
    topology: tuple[Annotated[str, Field(min_length=1)], ...] = ()


class _NodeEntry(_Machine):
    count: Annotated[int, Field(ge=1, le=MAX_NODES, strict=True)] = 1
    state: NodeState = NodeState.READY
    labels: dict[str, str] = Field(default_factory=dict)


class _GroupEntry(_Machine):
    name: _Name
    max_nodes: Annotated[int, Field(ge=1, le=MAX_NODES, strict=True)]
    labels: Annotated[dict[str, str], Field(min_length=1)]

    @property
    def node(self) -> _NodeEntry:
        """One of its nodes."""
        given = self.model_dump(exclude={"max_nodes"})
        return _NodeEntry.model_construct(**given, count=1, state=NodeState.READY)


class _ClusterFile(_Strict):
    gpu_types: dict[_Name, _TypeEntry | None] = Field(default_factory=dict)
    nodes: list[_NodeEntry] = Field(default_factory=list)
    autoscaled: list[_GroupEntry] = Field(default_factory=list)


def _read(file: _ClusterFile) -> ClusterFile:
    types, violations = _gpu_types(file)
    nodes: dict[str, Node] = {}
    for index, entry in enumerate(file.nodes):
        path = f"nodes[{index}]"
        if entry.gpu_type not in types:
            violations.append(_unknown_type(f"{path}.gpu_type", entry.gpu_type, types))
            continue
        for node in _nodes(entry, types[entry.gpu_type]):
            violations += _name_violations(f"{path}.name", node.name, nodes)
            nodes[node.name] = node
    groups = tuple(_groups(file, types, violations))
    if violations:
        raise SpecError(violations)
    return ClusterFile(gpu_types=types, nodes=tuple(nodes.values()), groups=groups)


def _groups(file: _ClusterFile, types: Mapping[str, GpuType], violations: list[Violation]) -> Iterator[NodeGroup]:
    names: set[str] = set()
    for index, entry in enumerate(file.autoscaled):
        path = f"autoscaled[{index}]"
        if entry.name in names:
            violations.append(Violation(path=f"{path}.name", value=repr(entry.name), allowed="names are unique"))
        names.add(entry.name)
        if entry.gpu_type not in types:
            violations.append(_unknown_type(f"{path}.gpu_type", entry.gpu_type, types))
            continue
        (template,) = _nodes(entry.node, types[entry.gpu_type])
        yield NodeGroup(template=template, max_nodes=entry.max_nodes)


def _gpu_types(file: _ClusterFile) -> tuple[dict[str, GpuType], list[Violation]]:
    """Types in the order of the file, then catalogue cards that only the nodes name."""
    types: dict[str, GpuType] = {}
    violations: list[Violation] = []
    named = (*(each.gpu_type for each in file.nodes), *(each.gpu_type for each in file.autoscaled))
    only_named = (name for name in named if card_called(name) is not None)
    for name in dict.fromkeys((*file.gpu_types, *only_named)):
        entry = file.gpu_types.get(name) or _TypeEntry()
        problems = list(_type_violations(f"gpu_types.{name}", name, entry))
        violations += problems
        # a type that is refused still counts as known, so that its nodes are not refused as well
        types[name] = GpuType(name=name, memory_bytes=1, flops_per_s=1.0) if problems else _gpu_type(name, entry)
    return types, violations


def _type_violations(path: str, name: str, entry: _TypeEntry) -> Iterator[Violation]:
    if entry.card is not None and card_called(entry.card) is None:
        yield Violation(path=f"{path}.card", value=repr(entry.card), allowed=one_of(entry.card, CATALOGUE))
    elif _card_name(name, entry) is None:
        described = "a virtual GPU" if entry.kind is DeviceKind.VIRTUAL else "a type that is not in the catalogue"
        for field, given in (("memory", entry.memory_bytes), ("flops", entry.flops_per_s)):
            if given is None:
                near = "" if entry.kind is DeviceKind.VIRTUAL else f"; {one_of(name, CATALOGUE)}"
                yield Violation(path=f"{path}.{field}", value="nothing", allowed=f"{described} needs {field}{near}")


def _card_name(name: str, entry: _TypeEntry) -> str | None:
    """The catalogue card ``entry`` starts from; a virtual GPU starts from none unless it names one."""
    if entry.card is not None:
        return card_called(entry.card)
    return None if entry.kind is DeviceKind.VIRTUAL else card_called(name)


def _gpu_type(name: str, entry: _TypeEntry) -> GpuType:
    changes = entry.model_dump(exclude={"card"}, exclude_none=True)
    if entry.flops_per_s is not None:  # a rate of the user's own holds for bf16 too, unless that is given as well
        changes["bf16_flops_per_s"] = entry.bf16_flops_per_s
    card = _card_name(name, entry)
    if card is None:
        return GpuType(name=name, **changes)
    return replace(CATALOGUE[card].gpu, name=name, **changes)


def _nodes(entry: _NodeEntry, gpu_type: GpuType) -> Iterator[Node]:
    default_host_bytes = max(LEAST_DEFAULT_HOST_BYTES, DEFAULT_HOST_TO_GPU_MEMORY * entry.gpus * gpu_type.memory_bytes)
    for index in range(1, entry.count + 1):
        yield Node(
            name=_node_name(entry, index),
            gpu_type=entry.gpu_type,
            num_gpus=entry.gpus,
            host_memory_bytes=entry.host_memory or default_host_bytes,
            num_cpus=entry.cpus or DEFAULT_CPUS_PER_GPU * entry.gpus,
            state=entry.state,
            labels=entry.labels,
            topology=entry.topology,
        )


def _node_name(entry: _NodeEntry, index: int) -> str:
    if _INDEX.search(entry.name):
        return _INDEX.sub(lambda match: f"{index:0{match[1] or 1}d}", entry.name)
    return entry.name if entry.count == 1 else f"{entry.name}-{index}"


def _name_violations(path: str, name: str, known: Mapping[str, Node]) -> Iterator[Violation]:
    if name in known:
        yield Violation(path=path, value=repr(name), allowed="node names are unique in a cluster")
    if not re.match(_NAME, name):
        allowed = "lower-case letters, digits, '-', '_' and '.', with {i} or {i:02} where the number goes"
        yield Violation(path=path, value=repr(name), allowed=allowed)


def _unknown_type(path: str, name: str, types: Mapping[str, GpuType]) -> Violation:
    return Violation(path=path, value=repr(name), allowed=one_of(name, {**dict.fromkeys(types), **CATALOGUE}))


def _fields_at(location: Location) -> list[str]:
    sections: dict[str, type[BaseModel]] = {"gpu_types": _TypeEntry, "autoscaled": _GroupEntry, "nodes": _NodeEntry}
    entry = sections[str(location[0])] if len(location) > 2 else _ClusterFile
    return [each.alias or name for name, each in entry.model_fields.items()]
