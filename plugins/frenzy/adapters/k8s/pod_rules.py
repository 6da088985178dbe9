"""What an installation's pods have in common: a YAML file, checked at the edge.

    namespace: frenzy-jobs
    image: registry.example/frenzy-trainer:1.0
    run_directory: {claim: frenzy-runs, mount_path: /var/lib/frenzy/runs}
    tolerations:
      - {key: team, operator: Equal, value: research, effect: NoSchedule}

``include/kubernetes/pods.yaml`` shows every field. Secrets are named, never written.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.pod_overlay import Overlay, violations
from frenzy.adapters.k8s.torch_builds import LOCKED, TorchBuild
from frenzy.adapters.spec.refusals import Location, file_text, refused, shown, violations_of
from frenzy.adapters.spec.yaml_core import FILE, load_yaml
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.hardware import DeviceKind, GpuType
from frenzy.core.values.prepared_data import MOST_PREPARERS
from frenzy.core.values.units import GIB, parse_bytes, parse_duration_s

_WHOLE: Final = "pod rules"
# Volumes that every pod has, and where they are mounted.
SHM_VOLUME: Final = "frenzy-shm"
TMP_VOLUME: Final = "frenzy-tmp"
HOME_VOLUME: Final = "frenzy-home"
RUNS_VOLUME: Final = "frenzy-runs"
OWN_MOUNTS: Final[Mapping[str, str]] = {
    SHM_VOLUME: "/dev/shm",
    TMP_VOLUME: "/tmp",
    HOME_VOLUME: "/home/frenzy",
}
HOME: Final = OWN_MOUNTS[HOME_VOLUME]
# And of pods whose image is that of a script.
LAUNCHER_VOLUME: Final = "frenzy-launcher"
LAUNCHER_MOUNT: Final = "/opt/frenzy-launcher"
_VOLUMES: Final = frozenset({*OWN_MOUNTS, RUNS_VOLUME, LAUNCHER_VOLUME})
_MOUNTS: Final = frozenset({*OWN_MOUNTS.values(), LAUNCHER_MOUNT})

# Labels that say what a node is part of, from the widest on: those of Kubernetes, clouds and NVIDIA's topograph, and
# feature discovery's for what NVLink connects.
TOPOLOGY: Final = (
    "topology.kubernetes.io/zone",
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "oci.oraclecloud.com/rdma.hpc_island_id",
    "oci.oraclecloud.com/rdma.network_block_id",
    "oci.oraclecloud.com/rdma.local_block_id",
    "backend.coreweave.cloud/fabric",
    "backend.coreweave.cloud/superpod",
    "backend.coreweave.cloud/leafgroup-name",
    "topology.kubernetes.io/rack",
    "network.topology.nvidia.com/accelerator",
    "nvidia.com/gpu.clique",
)

_OBJECT_NAME: Final = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
_VOLUME_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_VARIABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
_LABEL_NAME: Final = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
_LABEL_VALUE: Final = r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"
_INTERFACE: Final = r"^\S{1,64}$"


def _whole_bytes(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("write a size, for example '640 MiB' or '24 GiB'")
    return parse_bytes(value)


def _seconds(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("write a time, for example '90s' or '5m'")
    return parse_duration_s(value)


_Size = Annotated[int, BeforeValidator(_whole_bytes), Field(gt=0)]
_Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
_Cpus = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_ObjectName = Annotated[str, Field(pattern=_OBJECT_NAME)]
_Path = Annotated[str, Field(pattern=r"^/[^:\s]*$")]
_LabelName = Annotated[str, Field(pattern=_LABEL_NAME)]
_LabelValue = Annotated[str, Field(pattern=_LABEL_VALUE)]
_Variable = Annotated[str, Field(pattern=_VARIABLE)]
_UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]

_CHECKED: Final = with_config(ConfigDict(extra="forbid"))
# Set by variables of these names, not in the file.
_NOT_IN_THE_FILE: Final = frozenset({"stop_grace_s", "startup_s", "collective_timeout_s"})


def _in_file(field_name: str) -> str:
    """What the file calls the field: it says sizes and times with their units."""
    return field_name if field_name in _NOT_IN_THE_FILE else field_name.removesuffix("_bytes").removesuffix("_s")


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Architecture(StrEnum):
    """Of processors, as the label kubernetes.io/arch names them."""

    AMD64 = "amd64"
    ARM64 = "arm64"


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@_CHECKED
@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node's taint: what keeps pods away that do not tolerate it."""

    key: str
    effect: TaintEffect
    value: str = ""


@_CHECKED
@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """As in Kubernetes: no key tolerates every taint, no effect every effect."""

    key: str | None = None
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str | None = None
    effect: TaintEffect | None = None
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Whether a pod with this toleration may be put on a node with ``taint``."""
        if self.effect not in (None, taint.effect) or self.key not in (None, taint.key):
            return False
        return self.operator is TolerationOperator.EXISTS or (self.value or "") == taint.value


# The taint that GPU nodes carry by custom, whatever its value.
GPU_TOLERATION: Final = Toleration(
    key="nvidia.com/gpu", operator=TolerationOperator.EXISTS, effect=TaintEffect.NO_SCHEDULE
)


@_CHECKED
@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """The claim of a volume that every node can mount for writing (ReadWriteMany), and what it is to Airflow.

    mount_path: where Airflow has the volume, which is the folder that FRENZY_RUN_ROOT names or one above it. In a
    pod only the folder of its own run is there, and what that starts from.
    """

    mount_path: _Path
    claim: _ObjectName | None = None
    host_path: _Path | None = None


@_CHECKED
@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A further volume; exactly one of claim, host_path, config_map, secret. A host_path is mounted read-only."""

    name: Annotated[str, Field(pattern=_VOLUME_NAME)]
    mount_path: _Path
    claim: _ObjectName | None = None
    host_path: _Path | None = None
    config_map: _ObjectName | None = None
    secret: _ObjectName | None = None
    sub_path: Annotated[str, Field(pattern=r"^[^/\s][^\s]*$")] | None = None
    read_only: bool = True


@with_config(ConfigDict(extra="forbid", alias_generator=_in_file))
@dataclass(frozen=True, slots=True, kw_only=True)
class PodRules:
    """Everything about the pods that is not the job's or the plan's.

    workload_images: patterns of the images that a job's own script may name, * for any text; none of them by default.
    run_directory: None where the run root is an object store. extra_host_memory_per_gpu_bytes: for each
    rank beside what the plan predicts, /dev/shm and a virtual GPU's budget. cpus_per_gpu: requested, and
    what the scheduler counts with;
    cpu_limit_per_gpu: the most. preparing_pods: how many prepare the data of a run. preparing_*: of each, which
    requests so many CPUs and uses what is idle beyond; its node_selector is that of all pods unless it has one of its
    own. ephemeral_storage_bytes: the most that a pod may write; it requests ``requested_disk_bytes``. architectures,
    torch_build: what the image is built for. topology: labels of nodes that say what they are part of, from the widest
    on. python: what runs ``-m frenzy.trainer.launch``. network_interface:
    which gloo and NCCL are to use, if they choose wrong. scheduling_patience_s: how long a pod may
    find no node, or not get its image or its container; autoscaling_patience_s: how long one may find no
    node that is placed on a group whose nodes an autoscaler adds, unless the former is longer.
    stop_grace_s, startup_s, collective_timeout_s: from the settings of these names, not from the file.
    """

    image: Annotated[str, Field(pattern=r"^\S+$", max_length=512)]
    namespace: Annotated[str, Field(pattern=_VOLUME_NAME)] = "default"
    workload_images: tuple[Annotated[str, Field(pattern=r"^\S+$", max_length=512)], ...] = ()
    image_pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    image_pull_secrets: tuple[_ObjectName, ...] = ()
    service_account: _ObjectName = "default"
    priority_class: _ObjectName | None = None
    scheduler_name: _ObjectName | None = None
    runtime_class: _ObjectName | None = None
    node_selector: Mapping[_LabelName, _LabelValue] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    labels: Mapping[_LabelName, _LabelValue] = field(default_factory=dict)
    annotations: Mapping[_LabelName, str] = field(default_factory=dict)
    topology: tuple[_LabelName, ...] = TOPOLOGY
    kueue_queue: _LabelValue | None = None
    architectures: Annotated[tuple[Architecture, ...], Field(min_length=1)] = (Architecture.AMD64,)
    torch_build: TorchBuild = LOCKED
    run_directory: RunDirectory | None = None
    volumes: tuple[Volume, ...] = ()
    overlays: tuple[Overlay, ...] = ()
    python: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("python",)
    env: Mapping[_Variable, str] = field(default_factory=dict)
    env_from_secrets: tuple[_ObjectName, ...] = ()
    network_interface: Annotated[str, Field(pattern=_INTERFACE)] | None = None
    cpus_per_gpu: _Cpus = 1.0
    cpu_limit_per_gpu: _Cpus = 8.0
    preparing_pods: Annotated[int, Field(ge=1, le=MOST_PREPARERS, strict=True)] = 1
    preparing_cpus: _Cpus = 2.0
    preparing_memory_bytes: _Size = 4 * GIB
    preparing_node_selector: Mapping[_LabelName, _LabelValue] | None = None
    extra_host_memory_per_gpu_bytes: _Size = 1 * GIB
    shm_per_gpu_bytes: _Size = 1 * GIB
    ephemeral_storage_bytes: _Size = 16 * GIB
    ephemeral_storage_request_bytes: _Size = 2 * GIB
    run_as_user: _UserId = 1000
    run_as_group: _UserId = 1000
    fs_group: _UserId | None = 1000
    read_only_root: bool = True
    scheduling_patience_s: _Seconds = 300.0
    autoscaling_patience_s: _Seconds = 1200.0
    stop_grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    startup_s: _Seconds = 900.0
    collective_timeout_s: _Seconds = 600.0

    @property
    def all_tolerations(self) -> tuple[Toleration, ...]:
        """The GPU nodes' custom taint, then the file's."""
        return (GPU_TOLERATION, *(each for each in self.tolerations if each != GPU_TOLERATION))

    @property
    def requested_disk_bytes(self) -> int:
        """What a pod requests of a node's disk: never more than it may write."""
        return min(self.ephemeral_storage_request_bytes, self.ephemeral_storage_bytes)

    def host_bytes_per_gpu(self, gpu: GpuType) -> int:
        """Host memory set aside for each rank beside what its plan predicts."""
        budget = gpu.memory_bytes if gpu.kind is DeviceKind.VIRTUAL else 0
        return self.extra_host_memory_per_gpu_bytes + self.shm_per_gpu_bytes + budget

    def allows_image(self, image: str) -> bool:
        """Whether a job's own script may run in ``image``."""
        return any(fnmatchcase(image, each) for each in self.workload_images)

    def tolerates(self, taint: Taint) -> bool:
        """Whether our pods may be put on a node with ``taint``; a mere preference never keeps them away."""
        if taint.effect is TaintEffect.PREFER_NO_SCHEDULE:
            return True
        return any(each.tolerates(taint) for each in self.all_tolerations)


def load_pod_rules(path: str | Path, *, stop_grace_s: float) -> PodRules:
    """The rules in the YAML file at ``path``. Raises SpecError with every violation."""
    return parse_pod_rules(file_text(path, _WHOLE), stop_grace_s=stop_grace_s)


def parse_pod_rules(text: str, *, stop_grace_s: float = 30.0) -> PodRules:
    """The rules in YAML ``text``. Raises SpecError with every violation: path, value, what is allowed."""
    document = load_yaml(text, FILE)
    if not isinstance(document, Mapping):
        raise refused(_WHOLE, shown(document), "write a mapping with at least an image")
    violations = [
        Violation(path=name, value=shown(document[name]), allowed=f"no such field; set FRENZY_{name.upper()}")
        for name in sorted(_NOT_IN_THE_FILE & document.keys())
    ]
    known = {name: value for name, value in document.items() if name not in _NOT_IN_THE_FILE}
    rules: PodRules | None = None
    try:
        rules = TypeAdapter(PodRules).validate_json(json.dumps({**known, "stop_grace_s": stop_grace_s}), strict=True)
    except ValidationError as error:
        violations += violations_of(error, _fields_at, _WHOLE)
    violations += [] if rules is None else list(_contradictions(rules))
    if rules is None or violations:
        raise SpecError(violations)
    return rules


def _fields_at(location: Location) -> list[str]:
    """Names that the file may have where ``location`` ends."""
    kind: Any = PodRules
    for step in location[:-1]:
        if dataclasses.is_dataclass(kind) and isinstance(step, str):
            kind = _section(typing.get_type_hints(kind).get(step))
    names = (_in_file(each.name) for each in dataclasses.fields(kind or PodRules))
    return [name for name in names if name not in _NOT_IN_THE_FILE]


def _section(hint: Any) -> Any:
    """The dataclass inside ``T | None`` or ``tuple[T, ...]``, if there is one."""
    return next((each for each in typing.get_args(hint) if dataclasses.is_dataclass(each)), None)


def _contradictions(rules: PodRules) -> Iterator[Violation]:
    yield from _run_directory_violations(rules.run_directory)
    yield from _volume_violations(rules)
    yield from _overlay_violations(rules)
    for index, each in enumerate(rules.tolerations):
        yield from _toleration_violations(f"tolerations[{index}]", each)
    if rules.cpu_limit_per_gpu < rules.cpus_per_gpu:
        allowed = f"at least cpus_per_gpu, which is {rules.cpus_per_gpu:g}"
        yield Violation(path="cpu_limit_per_gpu", value=f"{rules.cpu_limit_per_gpu:g}", allowed=allowed)
    for name in rules.labels:
        if name.startswith((labels.OWN_PREFIX, "app.kubernetes.io/")):
            yield Violation(path=f"labels.{name}", value="a label of ours", allowed="choose a name of your own")


def _run_directory_violations(runs: RunDirectory | None) -> Iterator[Violation]:
    if runs is not None and (runs.claim is None) == (runs.host_path is None):
        allowed = "give exactly one of claim and host_path; leave run_directory out for an object store"
        yield Violation(path="run_directory", value=shown(runs.claim or "no source"), allowed=allowed)


def _volume_violations(rules: PodRules) -> Iterator[Violation]:
    names = set(_VOLUMES)
    places = {*_MOUNTS, *([rules.run_directory.mount_path] if rules.run_directory else [])}
    for index, each in enumerate(rules.volumes):
        path = f"volumes[{index}]"
        sources = [each.claim, each.host_path, each.config_map, each.secret]
        if sum(source is not None for source in sources) != 1:
            allowed = "give exactly one of claim, host_path, config_map, secret"
            yield Violation(path=path, value=repr(each.name), allowed=allowed)
        if each.host_path is not None and not each.read_only:
            yield Violation(path=f"{path}.read_only", value="False", allowed="a host_path is mounted read-only")
        if each.sub_path is None and _is_of_runs(each, rules.run_directory):
            allowed = "give a folder of it: the whole would show every run to every job"
            yield Violation(path=f"{path}.sub_path", value="nothing", allowed=allowed)
        if each.name in names:
            yield Violation(path=f"{path}.name", value=repr(each.name), allowed="names are unique in a pod")
        if each.mount_path in places:
            yield Violation(path=f"{path}.mount_path", value=repr(each.mount_path), allowed="mounted already")
        names.add(each.name)
        places.add(each.mount_path)


def _overlay_violations(rules: PodRules) -> Iterator[Violation]:
    runs = [rules.run_directory.mount_path] if rules.run_directory else []
    volumes = {*_VOLUMES, *(each.name for each in rules.volumes)}
    mounts = {*_MOUNTS, *runs, *(each.mount_path for each in rules.volumes)}
    for index, each in enumerate(rules.overlays):
        claim = rules.run_directory.claim if rules.run_directory else None
        yield from violations(f"overlays[{index}]", each, volumes=volumes, mounts=mounts, runs_claim=claim)


def _is_of_runs(volume: Volume, runs: RunDirectory | None) -> bool:
    source = volume.claim or volume.host_path
    return runs is not None and source is not None and source == (runs.claim or runs.host_path)


def _toleration_violations(path: str, toleration: Toleration) -> Iterator[Violation]:
    if toleration.operator is TolerationOperator.EXISTS and toleration.value is not None:
        yield Violation(path=f"{path}.value", value=repr(toleration.value), allowed="none with the operator Exists")
    if toleration.key is None and toleration.operator is TolerationOperator.EQUAL:
        yield Violation(path=f"{path}.key", value="nothing", allowed="give a key, or the operator Exists")
    if toleration.toleration_seconds is not None and toleration.effect is not TaintEffect.NO_EXECUTE:
        allowed = "only with the effect NoExecute"
        yield Violation(path=f"{path}.toleration_seconds", value=str(toleration.toleration_seconds), allowed=allowed)
