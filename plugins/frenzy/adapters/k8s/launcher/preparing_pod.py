"""The pod that prepares a run's data: a CPU, no GPU, and of all runs' folders its own and its team's prepared data.

It reads the runs that its model or tokenizer comes from, too. Pure and deterministic, as the workers' pods, and under
the same rules.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.pod_parts import (
    Manifest,
    check_run_directory,
    common_spec,
    container_security,
    cpus,
    data_path,
    literal,
    mebibytes,
    mount,
    pod_security,
    refused,
    run_path,
    runs_read,
    secret,
    source,
    toleration,
    volume,
    without_nothing,
)
from frenzy.adapters.k8s.pod_overlay import with_overlays_of_all
from frenzy.adapters.k8s.pod_rules import HOME, HOME_VOLUME, OWN_MOUNTS, RUNS_VOLUME, TMP_VOLUME, PodRules
from frenzy.core.values.prepared_data import PreparingSpec

_MODULE: Final = ("-m", "frenzy.trainer.prepare_data")
_TERMINATION_LOG: Final = "/dev/termination-log"
_MOUNTS: Final = {name: OWN_MOUNTS[name] for name in (TMP_VOLUME, HOME_VOLUME)}


def preparing_pod(spec: PreparingSpec, rules: PodRules, rank: int = 0) -> Manifest:
    """The pod of that ``rank`` for one try; those from 1 on help the first.

    Raises PermanentError when the run directory is on no volume of the pods, and for secrets that pods cannot refer to.
    """
    check_run_directory(spec, rules)
    helper = {labels.PREPARING_RANK: str(rank)} if rank else {}
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": without_nothing(
            {
                "name": labels.name_part(f"frenzy-{spec.run_key}-p{spec.number}{f'-{rank}' if rank else ''}"),
                "namespace": rules.namespace,
                "labels": {**rules.labels, **labels.preparing_labels(spec), **helper},
                "annotations": dict(rules.annotations),
            }
        ),
        "spec": _pod_spec(spec, rules, rank),
    }
    return with_overlays_of_all(pod, rules.overlays, queue=spec.job.queue)


def _pod_spec(spec: PreparingSpec, rules: PodRules, rank: int) -> Manifest:
    selector = rules.node_selector if rules.preparing_node_selector is None else rules.preparing_node_selector
    given: Manifest = {
        **common_spec(rules),
        "nodeSelector": {**selector, **_architecture(rules)},
        "tolerations": [toleration(each) for each in rules.tolerations],
        "securityContext": pod_security(rules),
        "containers": [_container(spec, rules, rank)],
        "volumes": [*_own_volumes(spec, rules), *(volume(each) for each in rules.volumes)],
    }
    return without_nothing(given)


def _architecture(rules: PodRules) -> Mapping[str, str]:
    """Of an image for one kind of processors; nodes without GPUs are in no inventory that could have left them out."""
    return {labels.ARCHITECTURE: rules.architectures[0].value} if len(rules.architectures) == 1 else {}


def _container(spec: PreparingSpec, rules: PodRules, rank: int) -> Manifest:
    share = ("--rank", str(rank), "--count", str(rules.preparing_pods)) if rules.preparing_pods > 1 else ()
    given: Manifest = {
        "name": labels.CONTAINER,
        "image": rules.image,
        "imagePullPolicy": rules.image_pull_policy.value,
        "command": [literal(each) for each in (*rules.python, *_MODULE)],
        "args": [literal(each) for each in ("--request", spec.request, *share)],
        "env": list(_environment(spec, rules)),
        "envFrom": [{"secretRef": {"name": each}} for each in rules.env_from_secrets],
        "resources": _resources(rules),
        "volumeMounts": [*_own_mounts(spec, rules), *(mount(each) for each in rules.volumes)],
        "securityContext": container_security(rules),
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return without_nothing(given)


def _resources(rules: PodRules) -> Manifest:
    """No limit of CPUs: the tokenizer uses what is idle."""
    memory = mebibytes(rules.preparing_memory_bytes)
    return {
        "requests": {
            "cpu": cpus(rules.preparing_cpus),
            "memory": memory,
            "ephemeral-storage": mebibytes(rules.requested_disk_bytes),
        },
        "limits": {"memory": memory, "ephemeral-storage": mebibytes(rules.ephemeral_storage_bytes)},
    }


def _environment(spec: PreparingSpec, rules: PodRules) -> Iterator[Manifest]:
    """Ours last and once each, as for workers."""
    fixed = {
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": HOME,
        "TMPDIR": OWN_MOUNTS[TMP_VOLUME],
        "USER": labels.MANAGER,
        "FRENZY_TERMINATION_LOG": _TERMINATION_LOG,
    }
    for name, value in {"OMP_NUM_THREADS": "1", **rules.env, **spec.job.env, **fixed}.items():
        if name not in spec.job.secrets:
            yield {"name": name, "value": literal(value)}
    for name, reference in spec.job.secrets.items():
        if name in fixed:
            raise refused(f"The secret {name} has the name of a variable of the trainer.", "Choose another name.")
        yield from secret(name, reference, rules)


def _own_volumes(spec: PreparingSpec, rules: PodRules) -> Iterator[Manifest]:
    for name in _MOUNTS:
        yield {"name": name, "emptyDir": {"sizeLimit": mebibytes(rules.ephemeral_storage_bytes)}}
    runs = rules.run_directory
    if runs is not None and run_path(spec) is not None:
        yield {"name": RUNS_VOLUME, **source(claim=runs.claim, host_path=runs.host_path)}


def _own_mounts(spec: PreparingSpec, rules: PodRules) -> Iterator[Manifest]:
    for name, place in _MOUNTS.items():
        yield {"name": name, "mountPath": place}
    path = run_path(spec)
    if rules.run_directory is not None and path is not None:
        top = posixpath.normpath(rules.run_directory.mount_path)
        for each in (path, data_path(spec)):
            yield {"name": RUNS_VOLUME, "mountPath": each, "subPath": posixpath.relpath(each, top)}
        for each in sorted({*runs_read(spec)} - {volume.mount_path for volume in rules.volumes}):
            yield {"name": RUNS_VOLUME, "mountPath": each, "subPath": posixpath.relpath(each, top), "readOnly": True}
