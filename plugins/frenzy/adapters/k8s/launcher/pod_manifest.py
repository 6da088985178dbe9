"""The pods of an attempt, as dictionaries that an API server accepts: the only author of manifests.

Pure and deterministic: the same spec and rules give the same pods with the same names, so that a
second creation conflicts. Only fields that are stable since Kubernetes 1.19 are used.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.pod_overlay import with_overlays
from frenzy.adapters.k8s.pod_rules import (
    HOME,
    HOME_VOLUME,
    OWN_MOUNTS,
    RUNS_VOLUME,
    SHM_VOLUME,
    TMP_VOLUME,
    PodRules,
    Toleration,
    Volume,
)
from frenzy.core.values.cluster import Node
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job_environment import kubernetes_secret_of
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.units import MIB

Manifest = dict[str, Any]

NVIDIA_GPU: Final = "nvidia.com/gpu"
TERMINATION_LOG: Final = "/dev/termination-log"
# Beyond the workers' own grace, so that their last files get out before the kubelet kills them.
_GRACE_BEYOND_S: Final = 15
_TRAINER: Final = ("-m", "frenzy.trainer.launch")
_LOCAL_SCHEME: Final = "file://"
# Pods that differ in what the scheduler looks at, as those for different nodes do, are roles of their own.
_KUEUE_ROLES: Final = 8
# Where Kubernetes would put in another variable's value; doubled, it leaves the text alone.
_EXPANSION: Final = re.compile(r"\$\(")


def pods_of(spec: LaunchSpec, rules: PodRules) -> tuple[Manifest, ...]:
    """One pod for each node of the placement, in the order of the node ranks.

    Raises PermanentError when the run directory is on no volume of the pods, for a secret that pods
    cannot refer to, or for more nodes than a pod group of Kueue may have.
    """
    _check_run_directory(spec, rules)
    _check_pod_group(spec, rules)
    pods = (_pod(spec, rules, node_rank) for node_rank in range(len(spec.placement.allocations)))
    return tuple(with_overlays(each, rules.overlays, spec, node_rank) for node_rank, each in enumerate(pods))


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
        raise _refused(
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
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(rules.stop_grace_s) + _GRACE_BEYOND_S,
        "serviceAccountName": rules.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": each} for each in rules.image_pull_secrets],
        "priorityClassName": rules.priority_class,
        "schedulerName": rules.scheduler_name,
        "runtimeClassName": rules.runtime_class,
        "nodeSelector": dict(rules.node_selector),
        "affinity": {"nodeAffinity": _node_affinity(spec, node_rank)},
        "tolerations": [_toleration(each) for each in rules.all_tolerations],
        "securityContext": _without_nothing(
            {
                "runAsNonRoot": True,
                "runAsUser": rules.run_as_user,
                "runAsGroup": rules.run_as_group,
                "fsGroup": rules.fs_group,
                "fsGroupChangePolicy": "OnRootMismatch" if rules.fs_group is not None else None,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        ),
        "containers": [_container(spec, rules, node_rank)],
        "volumes": [*_own_volumes(spec, rules, node_rank), *(_volume(each) for each in rules.volumes)],
    }
    return _without_nothing(given)


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


def _toleration(toleration: Toleration) -> Manifest:
    return _without_nothing(
        {
            "key": toleration.key,
            "operator": toleration.operator.value,
            "value": toleration.value,
            "effect": toleration.effect.value if toleration.effect is not None else None,
            "tolerationSeconds": toleration.toleration_seconds,
        }
    )


def _container(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Manifest:
    arguments = ("--run-dir", spec.run_dir, "--attempt", str(spec.attempt), "--node-rank", str(node_rank))
    given: Manifest = {
        "name": labels.CONTAINER,
        "image": rules.image,
        "imagePullPolicy": rules.image_pull_policy.value,
        "command": [_literal(each) for each in (*rules.python, *_TRAINER)],
        "args": [_literal(each) for each in arguments],
        "env": list(_environment(spec, rules)),
        "envFrom": [{"secretRef": {"name": each}} for each in rules.env_from_secrets],
        "resources": _resources(spec, rules, node_rank),
        "volumeMounts": [*_own_mounts(spec, rules), *(_mount(each) for each in rules.volumes)],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": rules.read_only_root,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return _without_nothing(given)


# resources


def gpu_resource(spec: LaunchSpec, node_rank: int) -> str | None:
    """The resource by which the node's GPUs are asked for; None for a virtual GPU that is none."""
    found = _node(spec, node_rank)
    if found is not None and labels.GPU_RESOURCE in found.labels:
        return found.labels[labels.GPU_RESOURCE]
    return None if spec.gpu.kind is DeviceKind.VIRTUAL else NVIDIA_GPU


def _resources(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Manifest:
    """What the scheduler of GPUs counted on. Host memory cannot be given back, hence the limit is the request."""
    num_gpus = spec.gpus_per_node[node_rank]
    resource = gpu_resource(spec, node_rank)
    devices = {} if resource is None else {resource: str(num_gpus)}
    planned = spec.plan.memory.host_bytes_of(num_gpus)
    memory = _mebibytes(planned + num_gpus * rules.host_bytes_per_gpu(spec.gpu))
    return {
        "requests": {
            "cpu": _cpus(num_gpus * rules.cpus_per_gpu),
            "memory": memory,
            "ephemeral-storage": _mebibytes(rules.requested_disk_bytes),
            **devices,
        },
        "limits": {
            "cpu": _cpus(num_gpus * rules.cpu_limit_per_gpu),
            "memory": memory,
            "ephemeral-storage": _mebibytes(rules.ephemeral_storage_bytes),
            **devices,
        },
    }


def _mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // MIB)}Mi"


def _cpus(cpus: float) -> str:
    return f"{math.ceil(cpus * 1000)}m"


# environment


def _environment(spec: LaunchSpec, rules: PodRules) -> Iterator[Manifest]:
    """Ours last and once each: neither rules nor job can put another in their place."""
    fixed = _fixed_environment(spec, rules)
    values = {**_default_environment(spec, rules), **rules.env, **spec.job.env, **fixed}
    for name, value in values.items():
        if name not in spec.job.secrets:
            yield {"name": name, "value": _literal(value)}
    for name, reference in spec.job.secrets.items():
        if name in fixed:
            raise _refused(f"The secret {name} has the name of a variable of the trainer.", "Choose another name.")
        yield from _secret(name, reference, rules)
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
        "HOME": HOME,
        "TMPDIR": OWN_MOUNTS[TMP_VOLUME],
        # torch asks for the user's name, which no file in the image may know
        "USER": labels.MANAGER,
        "FRENZY_RUN_KEY": spec.run_key,
        "FRENZY_ATTEMPT": str(spec.attempt),
        "FRENZY_TERMINATION_LOG": TERMINATION_LOG,
        "FRENZY_STOP_GRACE_S": f"{rules.stop_grace_s:g}",
        "FRENZY_STARTUP_S": f"{rules.startup_s:g}",
        "FRENZY_COLLECTIVE_TIMEOUT_S": f"{rules.collective_timeout_s:g}",
    }


def _secret(name: str, reference: str, rules: PodRules) -> Iterator[Manifest]:
    """The job's secret as a reference. A variable of Airflow's own environment would have to be written out."""
    found = kubernetes_secret_of(reference)
    if found is not None:
        yield {"name": name, "valueFrom": {"secretKeyRef": {"name": found.name, "key": found.key}}}
    elif reference != f"env:{name}" or not rules.env_from_secrets:
        detail = f"The secret {name} refers to {reference!r}, which is no Secret of the pods and no variable they have."
        remedy = (
            "Put it into a Secret of the pods' namespace and write k8s:secret/key; or list the Secret under "
            f"env_from_secrets in the pod rules and write env:{name}."
        )
        raise _refused(detail, remedy)


def _literal(text: str) -> str:
    return _EXPANSION.sub("$$(", text)


# volumes


def _own_volumes(spec: LaunchSpec, rules: PodRules, node_rank: int) -> Iterator[Manifest]:
    shm_bytes = spec.gpus_per_node[node_rank] * rules.shm_per_gpu_bytes
    yield {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": _mebibytes(shm_bytes)}}
    for name in (TMP_VOLUME, HOME_VOLUME):
        yield {"name": name, "emptyDir": {"sizeLimit": _mebibytes(rules.ephemeral_storage_bytes)}}
    runs = rules.run_directory
    if runs is not None and _run_path(spec) is not None:
        yield {"name": RUNS_VOLUME, **_source(claim=runs.claim, host_path=runs.host_path)}


def _own_mounts(spec: LaunchSpec, rules: PodRules) -> Iterator[Manifest]:
    """Of all runs the pod sees its own, and without the right to write those that its model comes from.

    The whole folder of such a run: nobody but Airflow can put a link in its place, as its pods could further down.
    """
    for name, place in OWN_MOUNTS.items():
        yield {"name": name, "mountPath": place}
    path = _run_path(spec)
    if rules.run_directory is not None and path is not None:
        top = posixpath.normpath(rules.run_directory.mount_path)
        yield {"name": RUNS_VOLUME, "mountPath": path, "subPath": posixpath.relpath(path, top)}
        for each in sorted(set(runs_read(spec)) - {volume.mount_path for volume in rules.volumes}):
            yield {"name": RUNS_VOLUME, "mountPath": each, "subPath": posixpath.relpath(each, top), "readOnly": True}


def runs_read(spec: LaunchSpec) -> tuple[str, ...]:
    """Folders beside the run's own in which the job's model or tokenizer is, as paths; none in an object store.

    checkpoint.warm_start may be a run key, all else is a path.
    """
    path, job = _run_path(spec), spec.job
    if path is None:
        return ()
    root = posixpath.dirname(path)
    warm_start = (job.checkpoint.warm_start or "").removeprefix(_LOCAL_SCHEME)
    given = ("" if "://" in warm_start else posixpath.join(root, warm_start), job.model.path or "", job.model.tokenizer)
    below = (posixpath.relpath(each, root) for each in given if each.startswith("/"))
    runs = {posixpath.join(root, each.partition("/")[0]) for each in below if not each.startswith(".")}
    return tuple(sorted(runs - {path}))


def _volume(volume: Volume) -> Manifest:
    if volume.config_map is not None:
        return {"name": volume.name, "configMap": {"name": volume.config_map}}
    if volume.secret is not None:
        return {"name": volume.name, "secret": {"secretName": volume.secret}}
    return {"name": volume.name, **_source(claim=volume.claim, host_path=volume.host_path)}


def _source(*, claim: str | None, host_path: str | None) -> Manifest:
    if claim is not None:
        return {"persistentVolumeClaim": {"claimName": claim}}
    return {"hostPath": {"path": host_path}}


def _mount(volume: Volume) -> Manifest:
    given = {"name": volume.name, "mountPath": volume.mount_path, "subPath": volume.sub_path}
    return _without_nothing({**given, "readOnly": True if volume.read_only else None})


def _check_run_directory(spec: LaunchSpec, rules: PodRules) -> None:
    """A run directory that only Airflow sees would leave the workers without their spec."""
    path = _run_path(spec)
    if path is None:
        return
    runs = rules.run_directory
    if runs is None:
        raise _refused(
            f"The run directory {spec.run_dir} is a path, and the pods have no volume for it.",
            "Set FRENZY_RUN_ROOT to an object store, or give run_directory in the pod rules.",
        )
    mount = posixpath.normpath(runs.mount_path)
    if not path.startswith(mount.rstrip("/") + "/"):
        raise _refused(
            f"The run directory {path} is not below {mount}, where the pods have their volume.",
            "Give run_directory.mount_path the folder that FRENZY_RUN_ROOT names, and mount it there for Airflow.",
        )


def _run_path(spec: LaunchSpec) -> str | None:
    """The run directory as a path; None for an object store."""
    if "://" in spec.run_dir and not spec.run_dir.startswith(_LOCAL_SCHEME):
        return None
    return posixpath.normpath(spec.run_dir.removeprefix(_LOCAL_SCHEME))


def _node(spec: LaunchSpec, node_rank: int) -> Node | None:
    return spec.nodes[node_rank] if spec.nodes else None


def _without_nothing(given: Mapping[str, Any]) -> Manifest:
    """``given`` without what is None or empty, as an API server would leave it out."""
    return {name: value for name, value in given.items() if value is not None and value not in ({}, [])}


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))
