"""What an administrator adds to the pods of some queues or GPU types: networks, devices, sidecars; pure.

An overlay is a strategic merge patch of the Pod, as kubectl's, of which these rules hold:

    overlays:
      - when: {gpu_types: [h100], multi_node: true}
        allow: [capabilities]
        resources_per_gpu: {rdma/ib: 1}
        patch:
          spec:
            containers:
              - name: trainer
                securityContext: {capabilities: {add: [IPC_LOCK]}}

It adds and sets, and takes nothing away. Every field is one of the Pod that the installed client library knows. What
Frenzy decides (name, image, command, node, GPUs, memory) is closed; what lowers the security that SECURITY.md
promises is closed until ``allow`` names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, with_config

from frenzy.adapters.k8s import labels
from frenzy.core.values.errors import Violation
from frenzy.core.values.launch import LaunchSpec

Patch = Mapping[str, Any]

_CHECKED: Final = with_config(ConfigDict(extra="forbid"))
_Name = Annotated[str, Field(min_length=1)]
_Resource = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")]


class Privilege(StrEnum):
    """What an overlay may do beyond what every pod may.

    RUN_DIRECTORY: mount the claim of all runs' folders. SECRETS: mount Secrets of the namespace. SECURITY_CONTEXT: all
    else of security contexts that does not tighten them, the host's other namespaces, a token of the service account.
    """

    CAPABILITIES = "capabilities"
    HOST_NETWORK = "host_network"
    HOST_PATH = "host_path"
    RUN_DIRECTORY = "run_directory"
    SECRETS = "secrets"
    SECURITY_CONTEXT = "security_context"


@_CHECKED
@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Whose pods; what is left out does not limit. multi_node: of attempts on several nodes, or on one."""

    gpu_types: tuple[_Name, ...] = ()
    queues: tuple[_Name, ...] = ()
    multi_node: bool | None = None

    def holds(self, *, gpu_type: str, queue: str, num_nodes: int) -> bool:
        return (
            gpu_type in (self.gpu_types or (gpu_type,))
            and queue in (self.queues or (queue,))
            and self.multi_node in (None, num_nodes > 1)
        )


@_CHECKED
@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """resources_per_gpu: requested for each GPU of the pod: network devices, which plugins count per node."""

    when: When = field(default_factory=When)
    allow: tuple[Privilege, ...] = ()
    resources_per_gpu: Mapping[_Resource, Annotated[int, Field(gt=0)]] = field(default_factory=dict)
    patch: Mapping[str, Any] = field(default_factory=dict)


# Lists that a strategic merge patch merges by a key of their entries (patchMergeKey in the Pod's API), not replaces.
_MERGE_KEYS: Final[Mapping[str, str]] = {
    "claims": "name",
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_CONTAINERS: Final = ("containers", "initContainers")
# A variable with a value and another source at once would be refused.
_WHOLE: Final = "env"
_TRAINER: Final = rf"spec\.containers\[{labels.CONTAINER}\]"
_ANY_CONTAINER: Final = r"spec\.(?:containers|initContainers)\[[^]]*\]"
# GPUs that the ledger would not count, whoever's plugin offers them.
_GPUS: Final = r"nvidia\.com/.*|frenzy\.dev/.*|(?:amd|intel)\.com/gpu.*|gpu\.intel\.com/.*"
# Whatever lies at such a place or below it is not for overlays; beside it, what to use instead.
_CLOSED: Final = tuple(
    (re.compile(rf"(?:{pattern})(?:[.\[].*)?"), instead)
    for pattern, instead in (
        (r"apiVersion|kind|status|metadata\.(?!labels|annotations)[^.]+", "Frenzy names its pods"),
        (
            r"metadata\.(?:labels|annotations)\.(?:frenzy\.dev/|app\.kubernetes\.io/|kueue\.x-k8s\.io/).*",
            "a name of yours",
        ),
        (r"spec\.(?:nodeName|nodeSelector|tolerations|affinity\.nodeAffinity)", "node_selector or tolerations"),
        (r"spec\.(?:serviceAccountName|serviceAccount|automountServiceAccountToken)", "service_account"),
        (r"spec\.imagePullSecrets", "image_pull_secrets"),
        (r"spec\.(?:restartPolicy|terminationGracePeriodSeconds|activeDeadlineSeconds)", "Frenzy ends its pods"),
        (r"spec\.(?:ephemeralContainers|schedulingGates|resources)", "Frenzy makes its pods whole"),
        (rf"{_TRAINER}\.(?:image|imagePullPolicy)", "image or image_pull_policy"),
        (rf"{_TRAINER}\.(?:command|args|workingDir|lifecycle|restartPolicy|\w+Probe)", "python"),
        (rf"{_TRAINER}\.terminationMessage\w+", "Frenzy reads it"),
        (rf"{_TRAINER}\.envFrom", "env_from_secrets"),
        (
            rf"{_TRAINER}\.env\[(?:FRENZY_[^]]*|DS_ACCELERATOR|CUDA_VISIBLE_DEVICES|HOME|TMPDIR|USER)\]",
            "another variable",
        ),
        (
            rf"{_TRAINER}\.resources\.(?:limits|requests)\.(?:cpu|memory|ephemeral-storage)",
            "what the plan asks for; extra_host_memory_per_gpu, cpus_per_gpu",
        ),
        (rf"{_ANY_CONTAINER}\.resources\.(?:limits|requests)\.(?:{_GPUS})", "GPUs are the plan's"),
        (rf"spec\.initContainers\[{labels.COPYING_CONTAINER}\]", "another name"),
    )
)
_PRIVILEGED: Final = tuple(
    (re.compile(rf"(?:{pattern})(?:[.\[].*)?"), privilege)
    for pattern, privilege in (
        (r"spec\.hostNetwork", Privilege.HOST_NETWORK),
        (rf"{_ANY_CONTAINER}\.ports\[[^]]*\]\.hostPort", Privilege.HOST_NETWORK),
        (r"spec\.volumes\[[^]]*\]\.hostPath", Privilege.HOST_PATH),
        (r"spec\.volumes\[[^]]*\]\.(?:secret|projected\.sources\[\d+\]\.secret)", Privilege.SECRETS),
        (rf"{_ANY_CONTAINER}\.securityContext\.capabilities", Privilege.CAPABILITIES),
        (rf"(?:spec|{_ANY_CONTAINER})\.securityContext", Privilege.SECURITY_CONTEXT),
        (r"spec\.volumes\[[^]]*\]\.projected\.sources\[\d+\]\.serviceAccountToken", Privilege.SECURITY_CONTEXT),
        (r"spec\.(?:hostPID|hostIPC|hostUsers|shareProcessNamespace)", Privilege.SECURITY_CONTEXT),
    )
)
_CLAIM: Final = re.compile(r"spec\.volumes\[[^]]*\]\.persistentVolumeClaim\.claimName")
# Values of security contexts that need no word.
_TIGHTER: Final = tuple(
    (re.compile(rf"(?:spec|{_ANY_CONTAINER})\.securityContext\.{pattern}"), value)
    for pattern, value in (
        (r"(?:allowPrivilegeEscalation|privileged)", False),
        (r"(?:readOnlyRootFilesystem|runAsNonRoot)", True),
        (r"capabilities\.drop\[\d+\]", "ALL"),
        (r"seccompProfile\.type", "RuntimeDefault"),
    )
)


def with_overlays(pod: Patch, overlays: Iterable[Overlay], spec: LaunchSpec, node_rank: int) -> dict[str, Any]:
    """``pod`` of ``node_rank`` with all overlays that hold for its attempt, in their order."""
    result, num_nodes = dict(pod), len(spec.placement.allocations)
    for each in overlays:
        if each.when.holds(gpu_type=spec.plan.gpu_type, queue=spec.job.queue, num_nodes=num_nodes):
            result = overlaid(result, each, spec.gpus_per_node[node_rank])
    return result


def with_overlays_of_all(pod: Patch, overlays: Iterable[Overlay], *, queue: str) -> dict[str, Any]:
    """``pod``, which has no GPU, with the overlays that hold for any GPU type and on one node."""
    result = dict(pod)
    for each in overlays:
        if not each.when.gpu_types and each.when.holds(gpu_type="", queue=queue, num_nodes=1):
            result = overlaid(result, each, 0)
    return result


def overlaid(pod: Patch, overlay: Overlay, num_gpus: int) -> dict[str, Any]:
    """``pod`` with ``overlay``; num_gpus: of this pod."""
    amounts = {name: str(each * num_gpus) for name, each in overlay.resources_per_gpu.items()}
    devices = {"name": labels.CONTAINER, "resources": {"limits": amounts, "requests": amounts}}
    merged = _with_our_security(_merged(pod, overlay.patch), pod)
    return _merged(merged, {"spec": {"containers": [devices]}}) if amounts and num_gpus else merged


def _with_our_security(merged: dict[str, Any], pod: Patch) -> dict[str, Any]:
    """``merged``, whose containers that ``pod`` does not have get the workers' security context below their own."""
    before, spec = pod.get("spec"), merged.get("spec")
    if not isinstance(before, Mapping) or not isinstance(spec, Mapping):
        return merged
    workers = next((each for each in _entries(before, "containers") if each.get("name") == labels.CONTAINER), {})
    ours = workers.get("securityContext", {})
    known = {each.get("name") for kind in _CONTAINERS for each in _entries(before, kind)}
    changed = {
        kind: [each if each.get("name") in known else _secured(each, ours) for each in _entries(spec, kind)]
        for kind in _CONTAINERS
        if kind in spec
    }
    return {**merged, "spec": {**spec, **changed}}


def _secured(container: Patch, ours: Patch) -> Patch:
    own = container.get("securityContext", {})
    if own.get("privileged"):  # Kubernetes refuses half a privilege
        return container
    return {**container, "securityContext": _merged(ours, own)}


def _merged(given: Patch, patch: Patch) -> dict[str, Any]:
    return {**given, **{name: _merged_field(name, given.get(name), value) for name, value in patch.items()}}


def _merged_field(name: str, given: Any, value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(given, Mapping):
        return _merged(given, value)
    key = _MERGE_KEYS.get(name)
    if key is None or not isinstance(value, list) or not isinstance(given, list):
        return value
    changes = {each[key]: each for each in value}
    if name == _WHOLE:
        return [*(changes.pop(each[key], each) for each in given), *changes.values()]
    known = [_merged(each, changes.pop(each[key], {})) for each in given]
    return [*known, *changes.values()]


# what is refused


def violations(
    path: str, overlay: Overlay, *, volumes: Collection[str], mounts: Collection[str], runs_claim: str | None
) -> Iterator[Violation]:
    """What is wrong with ``overlay`` at ``path``. volumes, mounts: names and places that the pods have already.

    runs_claim: that holds all runs' folders, if a claim does.
    """
    where = f"{path}.patch"
    yield from _unknown(overlay.patch, "V1Pod", where)
    for place, value in _leaves(overlay.patch, ""):
        yield from _refusal(f"{where}.{place}", place, value, overlay.allow)
        if runs_claim is not None and value == runs_claim and _CLAIM.fullmatch(place):
            yield from _without_word(f"{where}.{place}", value, Privilege.RUN_DIRECTORY, overlay.allow)
    for name in overlay.resources_per_gpu:
        if re.fullmatch(_GPUS, name):
            yield Violation(path=f"{path}.resources_per_gpu.{name}", value=name, allowed="GPUs are the plan's")
    yield from _taken(overlay.patch, where, volumes, mounts)


def _refusal(path: str, place: str, value: Any, allow: Collection[Privilege]) -> Iterator[Violation]:
    instead = next((told for pattern, told in _CLOSED if pattern.fullmatch(place)), None)
    needed = next((each for pattern, each in _PRIVILEGED if pattern.fullmatch(place)), None)
    tightens = any(value == tight and pattern.fullmatch(place) for pattern, tight in _TIGHTER)
    if value is None or ".$" in f".{place}":
        yield Violation(path=path, value=repr(value), allowed="a value: an overlay takes nothing away")
    elif instead is not None:
        yield Violation(path=path, value=repr(value), allowed=f"not in an overlay: {instead}")
    elif needed is not None and not tightens:
        yield from _without_word(path, value, needed, allow)


def _without_word(path: str, value: Any, needed: Privilege, allow: Collection[Privilege]) -> Iterator[Violation]:
    if needed not in allow:
        yield Violation(path=path, value=repr(value), allowed=f"only with {needed} under allow")


def _taken(patch: Patch, path: str, volumes: Collection[str], mounts: Collection[str]) -> Iterator[Violation]:
    spec = patch.get("spec")
    spec = spec if isinstance(spec, Mapping) else {}
    for each in _entries(spec, "volumes"):
        if each.get("name") in volumes:
            yield Violation(path=f"{path}.spec.volumes", value=repr(each["name"]), allowed="names are unique in a pod")
    for container in _entries(spec, "containers"):
        for each in _entries(container, "volumeMounts"):
            if container.get("name") == labels.CONTAINER and each.get("mountPath") in mounts:
                taken = repr(each["mountPath"])
                yield Violation(path=f"{path}.spec.containers.volumeMounts", value=taken, allowed="mounted already")


def _entries(given: Patch, name: str) -> list[Patch]:
    found = given.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _leaves(value: Any, place: str, field_name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its place: ``spec.containers[trainer].env[NCCL_DEBUG].value``. Empty ones are values, too."""
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{place}.{name}" if place else name, name)
    elif isinstance(value, list) and value:
        key = _MERGE_KEYS.get(field_name)
        for index, each in enumerate(value):
            known = each.get(key, index) if key is not None and isinstance(each, Mapping) else index
            yield from _leaves(each, f"{place}[{known}]")
    else:
        yield place, value


def _unknown(value: Any, kind: str, path: str) -> Iterator[Violation]:
    """What is not as the client library describes ``kind``: ``V1Pod``, ``list[V1Volume]``, ``dict[str, str]``."""
    from kubernetes.client import models  # takes a second, and few installations have an overlay

    inner = re.fullmatch(r"(list|dict)\[(?:str, )?(.+)\]", kind)
    model = getattr(models, kind, None)
    if value is None:
        return
    if inner is not None and isinstance(value, list if inner[1] == "list" else Mapping):
        yield from _unknown_entries(value, inner[2], path)
    elif model is not None and isinstance(value, Mapping):
        kinds = {model.attribute_map[name]: each for name, each in model.openapi_types.items()}
        for name, each in value.items():
            if name in kinds:
                yield from _unknown(each, kinds[name], f"{path}.{name}")
            elif not name.startswith("$"):
                allowed = f"a field of {kind.removeprefix('V1')}: {', '.join(sorted(kinds))}"
                yield Violation(path=f"{path}.{name}", value=repr(each), allowed=allowed)
    elif inner is not None or model is not None or not _is_plain(value, kind):
        yield Violation(path=path, value=repr(value), allowed=kind.removeprefix("V1"))


def _unknown_entries(value: list[Any] | Mapping[str, Any], kind: str, path: str) -> Iterator[Violation]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _unknown(each, kind, f"{path}.{name}")
        return
    for index, each in enumerate(value):
        yield from _unknown(each, kind, f"{path}[{index}]")
    yield from _without_key(value, path)


def _without_key(value: list[Any], path: str) -> Iterator[Violation]:
    key = _MERGE_KEYS.get(path.rpartition(".")[2])
    for index, each in enumerate(value):
        if key is not None and isinstance(each, Mapping) and key not in each:
            yield Violation(path=f"{path}[{index}]", value=repr(dict(each)), allowed=f"its {key}, by which it is found")


def _is_plain(value: Any, kind: str) -> bool:
    if kind == "bool" or isinstance(value, bool):
        return kind in ("bool", "object") and isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int)
    return isinstance(value, str) or (kind == "object" and isinstance(value, int | float | Mapping | list))
