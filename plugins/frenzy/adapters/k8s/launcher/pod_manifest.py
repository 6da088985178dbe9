"""The pods of an attempt, as dictionaries that an API server accepts: the only author of manifests.

Pure and deterministic: the same spec and rules give the same pods with the same names, so that a
second creation conflicts. Only fields that are stable since Kubernetes 1.19 are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher import pod_parts as parts
from frenzy.adapters.k8s.launcher.pod_parts import Manifest
from frenzy.adapters.k8s.pod_overlay import with_overlays
from frenzy.adapters.k8s.pod_rules import (
    HOME_VOLUME,
    LAUNCHER_MOUNT,
    LAUNCHER_VOLUME,
    OWN_MOUNTS,
    SHM_VOLUME,
    TMP_VOLUME,
    PodRules,
)
from frenzy.core.lifecycle.stop_grace import stop_grace_s
from frenzy.core.values.cluster import Node
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.units import MIB

NVIDIA_GPU: Final = "nvidia.com/gpu"
_TRAINER: Final = ("-m", "frenzy.trainer.launch")
# In the image of a script, that may lack the package, the launcher is a folder that an init container of ours writes.
_COPYING: Final = ("-m", "frenzy.trainer.launch.copy_launcher")
_COPY: Final = f"{LAUNCHER_MOUNT}/launcher"
_COPY_BYTES: Final = 64 * MIB
# Pods that differ in what the scheduler looks at, as those for different nodes do, are roles of their own.
_KUEUE_ROLES: Final = 8


def pods_of(spec: LaunchSpec, rules: PodRules, checkpoint_rate: float | None = None) -> tuple[Manifest, ...]:
    """One pod for each node of the placement, in the order of the node ranks.

    checkpoint_rate: bytes that a rank of the run was seen to write in a second.
    Raises PermanentError when the run directory is on no volume of the pods, for a secret that pods
    cannot refer to, for an image that a job may not name, or for more nodes than a pod group of Kueue may have.
    """
    parts.check_run_directory(spec, rules)
    _check_pod_group(spec, rules)
    graces = (replace(rules, stop_grace_s=_grace_s(spec, rules, each, checkpoint_rate)) for each in spec.gpus_per_node)
    pods = (_pod(spec, its_rules, node_rank) for node_rank, its_rules in enumerate(graces))
    return tuple(with_overlays(each, rules.overlays, spec, node_rank) for node_rank, each in enumerate(pods))


def _grace_s(spec: LaunchSpec, rules: PodRules, num_ranks: int, checkpoint_rate: float | None) -> float:
    return stop_grace_s(
        spec.plan,
        num_ranks=num_ranks,
        bytes_per_s=checkpoint_rate,
        least_s=rules.stop_grace_s,
        most_s=rules.startup_s,
    )


def _pod(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": labels.pod_name(spec.run_key, spec.attempt, node_rank),
            "namespace": rules.namespace,
            "labels": {**rules.labels, **labels.pod_labels(spec, node_rank), **_kueue_labels(spec, rules)},
            "annotations": {
                **rules.annotations,
                **labels.pod_annotations(spec, node_rank),
                **_kueue_annotations(spec, rules),
            },
        },
        "spec": _pod_spec(spec, rules, node_rank),
    }


def _kueue_labels(spec: LaunchSpec, rules: PodRules) -> dict[str, str]:
    """Kueue admits the pods of one group together, or none of them."""
    if rules.kueue_queue is None:
        return {}
    queue = {labels.KUEUE_QUEUE: rules.kueue_queue}
    if len(spec.placement.allocations) == 1:
        return queue
    return {**queue, labels.KUEUE_GROUP: labels.name_part(f"frenzy-{spec.run_key}-a{spec.attempt}")}


def _check_pod_group(spec: LaunchSpec, rules: PodRules) -> None:
    """Kueue never admits a group with too many pods that differ, and says so in an event alone."""
    num_pods = len(spec.placement.allocations)
    if rules.kueue_queue is not None and num_pods > _KUEUE_ROLES:
        raise parts.refused(
            f"The job is placed on {num_pods} nodes, and a pod group of Kueue may be on {_KUEUE_ROLES} at most.",
            "Limit it with constraints.max_gpus, or leave kueue_queue out of the pod rules.",
        )


def _kueue_annotations(spec: LaunchSpec, rules: PodRules) -> dict[str, str]:
    """Without the second, Kueue would keep the quota and the pods of a group that failed: for pods in their place."""
    num_pods = len(spec.placement.allocations)
    if rules.kueue_queue is None or num_pods == 1:
        return {}
    return {labels.KUEUE_GROUP_SIZE: str(num_pods), labels.KUEUE_RETRIABLE: "false"}


def _pod_spec(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Manifest:
    given: Manifest = {
        **parts.common_spec(rules),
        "runtimeClassName": rules.runtime_class,
        "nodeSelector": dict(rules.node_selector),
        "affinity": {"nodeAffinity": _node_affinity(spec, node_rank)},
        "tolerations": [parts.toleration(each) for each in rules.all_tolerations],
        "securityContext": parts.pod_security(rules),
        "initContainers": [_copying(spec, rules, node_rank)] if _image_of_script(spec) else [],
        "containers": [_container(spec, rules, node_rank)],
        "volumes": list(_volumes(spec, rules, node_rank)),
    }
    return parts.without_nothing(given)


def _node_affinity(spec: LaunchSpec, node_rank: int) -> Manifest:
    """The placement's node, by the scheduler's own choice: it still checks resources, taints and volumes.

    A node of an autoscaled group that is not there yet is any node with the group's labels.
    """
    name = spec.placement.allocations[node_rank].node
    found = _node(spec, node_rank)
    known = found.labels if found is not None else {}
    wanted = {labels.HOSTNAME: known.get(labels.HOSTNAME, name)}
    if labels.NODE_GROUP in known:
        wanted = {key: value for key, value in known.items() if not key.startswith(labels.OWN_PREFIX)}
    terms = [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(wanted.items())]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}


def _container(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Manifest:
    return parts.main_container(
        rules,
        _image(spec, rules),
        _TRAINER if _image_of_script(spec) is None else (_COPY,),
        arguments=("--run-dir", spec.run_dir, "--attempt", str(spec.attempt), "--node-rank", str(node_rank)),
        environment=_environment(spec, rules),
        resources=_resources(spec, rules, node_rank, devices=_devices(spec, node_rank)),
        mounts=_own_mounts(spec, rules),
    )


def _image(spec: LaunchSpec, rules: PodRules) -> str:
    """The rules' own, or that of the job's script if the rules allow it."""
    image = _image_of_script(spec)
    if image is None:
        return rules.image
    if not rules.allows_image(image):
        allowed = ", ".join(rules.workload_images) or "none"
        detail = f"workload.image {image!r} is not among the workload_images of the pod rules ({allowed})."
        raise parts.refused(detail, "Leave workload.image out, or ask the administrator to allow it.")
    return image


def _image_of_script(spec: LaunchSpec) -> str | None:
    """What the job runs in, where that is not the rules' own image."""
    return None if spec.job.workload is None else spec.job.workload.image


def _copying(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Manifest:
    """Puts the launcher where the workers find it, from the trainer's image.

    It asks for no more than they, so that the pod is as large as without it, and is told nothing.
    """
    return {
        "name": labels.COPYING_CONTAINER,
        "image": rules.image,
        "imagePullPolicy": rules.image_pull_policy.value,
        "command": [parts.literal(each) for each in (*rules.python, *_COPYING)],
        "args": [_COPY],
        "resources": _resources(spec, rules, node_rank, devices={}),
        "volumeMounts": [{"name": LAUNCHER_VOLUME, "mountPath": LAUNCHER_MOUNT}],
        "securityContext": parts.container_security(rules),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


# resources


def gpu_resource(spec: LaunchSpec, node_rank: int) -> str | None:
    """The resource by which the node's GPUs are asked for; None for a virtual GPU that is none."""
    found = _node(spec, node_rank)
    if found is not None and labels.GPU_RESOURCE in found.labels:
        return found.labels[labels.GPU_RESOURCE]
    return None if spec.gpu.kind is DeviceKind.VIRTUAL else NVIDIA_GPU


def _devices(spec: LaunchSpec, node_rank: int) -> Manifest:
    resource = gpu_resource(spec, node_rank)
    return {} if resource is None else {resource: str(spec.gpus_per_node[node_rank])}


def _resources(spec: LaunchSpec, rules: PodRules, node_rank: int, *, devices: Manifest) -> Manifest:
    """What the scheduler of GPUs counted on. Host memory cannot be given back, hence the limit is the request."""
    num_gpus = spec.gpus_per_node[node_rank]
    planned = spec.plan.memory.host_bytes_of(num_gpus)
    memory = parts.mebibytes(planned + num_gpus * rules.host_bytes_per_gpu(spec.gpu))
    return {
        "requests": {
            "cpu": parts.cpus(num_gpus * rules.cpus_per_gpu),
            "memory": memory,
            "ephemeral-storage": parts.mebibytes(rules.requested_disk_bytes),
            **devices,
        },
        "limits": {
            "cpu": parts.cpus(num_gpus * rules.cpu_limit_per_gpu),
            "memory": memory,
            "ephemeral-storage": parts.mebibytes(rules.ephemeral_storage_bytes),
            **devices,
        },
    }


# environment


def _environment(spec: LaunchSpec, rules: PodRules) -> Iterator[Manifest]:
    yield from parts.environment(spec, rules, _default_environment(spec, rules), _fixed_environment(spec, rules))
    yield {"name": "FRENZY_NODE_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _default_environment(spec: LaunchSpec, rules: PodRules) -> dict[str, str]:
    """What a job may have otherwise. Threads: of one rank, within what its pod may use."""
    virtual = spec.gpu.kind is DeviceKind.VIRTUAL
    interface = rules.network_interface
    given = {
        "OMP_NUM_THREADS": "1" if virtual else str(max(1, math.floor(rules.cpu_limit_per_gpu))),
        "NCCL_DEBUG": None if virtual else "WARN",
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface if not virtual else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _fixed_environment(spec: LaunchSpec, rules: PodRules) -> dict[str, str]:
    virtual = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return {
        "DS_ACCELERATOR": "cuda",
        **(virtual if spec.gpu.kind is DeviceKind.VIRTUAL else {}),
        **parts.OWN_VARIABLES,
        "FRENZY_RUN_KEY": spec.run_key,
        "FRENZY_ATTEMPT": str(spec.attempt),
        "FRENZY_TERMINATION_LOG": parts.TERMINATION_LOG,
        "FRENZY_STOP_GRACE_S": f"{rules.stop_grace_s:g}",
        "FRENZY_STARTUP_S": f"{rules.startup_s:g}",
        "FRENZY_COLLECTIVE_TIMEOUT_S": f"{rules.collective_timeout_s:g}",
        "FRENZY_DISK_BYTES": str(rules.ephemeral_storage_bytes),
    }


# volumes


def _volumes(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Iterator[Manifest]:
    shm_bytes = spec.gpus_per_node[node_rank] * rules.shm_per_gpu_bytes
    yield {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": parts.mebibytes(shm_bytes)}}
    for name in (TMP_VOLUME, HOME_VOLUME):
        yield parts.empty_folder(name, rules.ephemeral_storage_bytes)
    if _image_of_script(spec):
        yield parts.empty_folder(LAUNCHER_VOLUME, _COPY_BYTES)
    yield from parts.given_volumes(spec, rules)


def _own_mounts(spec: LaunchSpec, rules: PodRules) -> Iterator[Manifest]:
    """Of all runs the pod sees its own, and without the right to write those that its model comes from, and its team's
    prepared data.

    The whole folder of such a run, or team: nobody but Airflow can put a link in its place, as its pods could further
    down.
    """
    for name, place in OWN_MOUNTS.items():
        yield {"name": name, "mountPath": place}
    if _image_of_script(spec):
        yield {"name": LAUNCHER_VOLUME, "mountPath": LAUNCHER_MOUNT, "readOnly": True}
    path = parts.run_path(spec)
    if path is not None:
        data = () if spec.prepared is None else (parts.data_path(spec),)
        yield from parts.run_mounts(rules, written=(path,), read=(*parts.runs_read(spec), *data))


def _node(spec: LaunchSpec, node_rank: int) -> Node | None:
    return spec.nodes[node_rank] if spec.nodes else None
