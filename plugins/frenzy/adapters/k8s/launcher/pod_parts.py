"""What pods of every kind are made of: parts of manifests, by the installation's rules. Pure."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.pod_rules import HOME, OWN_MOUNTS, RUNS_VOLUME, TMP_VOLUME, PodRules, Toleration, Volume
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.job_environment import kubernetes_secret_of
from frenzy.core.values.prepared_data import PreparedPaths
from frenzy.core.values.units import MIB

Manifest = dict[str, Any]

LOCAL_SCHEME: Final = "file://"
TERMINATION_LOG: Final = "/dev/termination-log"
# torch asks for the user's name, which no file in the image may know.
OWN_VARIABLES: Final = {"HOME": HOME, "TMPDIR": OWN_MOUNTS[TMP_VOLUME], "USER": labels.MANAGER}
# Beyond the workers' own grace, so that their last files get out before the kubelet kills them.
_GRACE_BEYOND_S: Final = 15
# Where Kubernetes would put in another variable's value; doubled, it leaves the text alone.
_EXPANSION: Final = re.compile(r"\$\(")


class OfRun(Protocol):
    """What a pod works on: something with a run directory."""

    @property
    def run_dir(self) -> str: ...
    @property
    def job(self) -> TrainingJob: ...


def common_spec(rules: PodRules) -> Manifest:
    """Of the specification of every pod; what is None or empty is to be left out."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(rules.stop_grace_s) + _GRACE_BEYOND_S,
        "serviceAccountName": rules.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": each} for each in rules.image_pull_secrets],
        "priorityClassName": rules.priority_class,
        "schedulerName": rules.scheduler_name,
    }


def pod_security(rules: PodRules) -> Manifest:
    """The security context of every pod."""
    given: Manifest = {
        "runAsNonRoot": True,
        "runAsUser": rules.run_as_user,
        "runAsGroup": rules.run_as_group,
        "fsGroup": rules.fs_group,
        "fsGroupChangePolicy": "OnRootMismatch" if rules.fs_group is not None else None,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return without_nothing(given)


def container_security(rules: PodRules) -> Manifest:
    """The security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": rules.read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }


def main_container(
    rules: PodRules,
    image: str,
    command: Iterable[str],
    *,
    arguments: Iterable[str],
    environment: Iterable[Manifest],
    resources: Manifest,
    mounts: Iterable[Manifest],
) -> Manifest:
    """The container that does the pod's work. command: what Python is to run."""
    given: Manifest = {
        "name": labels.CONTAINER,
        "image": image,
        "imagePullPolicy": rules.image_pull_policy.value,
        "command": [literal(each) for each in (*rules.python, *command)],
        "args": [literal(each) for each in arguments],
        "env": list(environment),
        "envFrom": [{"secretRef": {"name": each}} for each in rules.env_from_secrets],
        "resources": resources,
        "volumeMounts": [*mounts, *(_mount(each) for each in rules.volumes)],
        "securityContext": container_security(rules),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return without_nothing(given)


def environment(
    spec: OfRun, rules: PodRules, defaults: Mapping[str, str], fixed: Mapping[str, str]
) -> Iterator[Manifest]:
    """Ours, ``fixed``, last and once each: neither rules nor job can put another in their place."""
    for name, value in {**defaults, **rules.env, **spec.job.env, **fixed}.items():
        if name not in spec.job.secrets:
            yield {"name": name, "value": literal(value)}
    for name, reference in spec.job.secrets.items():
        if name in fixed:
            raise refused(f"The secret {name} has the name of a variable of the trainer.", "Choose another name.")
        yield from _secret(name, reference, rules)


def empty_folder(name: str, num_bytes: int) -> Manifest:
    return {"name": name, "emptyDir": {"sizeLimit": mebibytes(num_bytes)}}


def given_volumes(spec: OfRun, rules: PodRules) -> Iterator[Manifest]:
    """The run directory's, where that is a path, and those of the rules."""
    runs = rules.run_directory
    if runs is not None and run_path(spec) is not None:
        yield {"name": RUNS_VOLUME, **_source(claim=runs.claim, host_path=runs.host_path)}
    yield from (_volume(each) for each in rules.volumes)


def run_mounts(rules: PodRules, *, written: Iterable[str], read: Iterable[str]) -> Iterator[Manifest]:
    """Folders of the run directory's volume. read: without the right to write, and unless the rules mount them."""
    if rules.run_directory is None:
        return
    top = posixpath.normpath(rules.run_directory.mount_path)
    for each in written:
        yield {"name": RUNS_VOLUME, "mountPath": each, "subPath": posixpath.relpath(each, top)}
    for each in sorted({*read} - {volume.mount_path for volume in rules.volumes}):
        yield {"name": RUNS_VOLUME, "mountPath": each, "subPath": posixpath.relpath(each, top), "readOnly": True}


def toleration(toleration: Toleration) -> Manifest:
    return without_nothing(
        {
            "key": toleration.key,
            "operator": toleration.operator.value,
            "value": toleration.value,
            "effect": toleration.effect.value if toleration.effect is not None else None,
            "tolerationSeconds": toleration.toleration_seconds,
        }
    )


def mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // MIB)}Mi"


def cpus(cpus: float) -> str:
    return f"{math.ceil(cpus * 1000)}m"


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
        raise refused(detail, remedy)


def literal(text: str) -> str:
    return _EXPANSION.sub("$$(", text)


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
    return without_nothing({**given, "readOnly": True if volume.read_only else None})


def check_run_directory(spec: OfRun, rules: PodRules) -> None:
    """A run directory that only Airflow sees would leave the workers without their spec."""
    path = run_path(spec)
    if path is None:
        return
    runs = rules.run_directory
    if runs is None:
        raise refused(
            f"The run directory {spec.run_dir} is a path, and the pods have no volume for it.",
            "Set FRENZY_RUN_ROOT to an object store, or give run_directory in the pod rules.",
        )
    mount = posixpath.normpath(runs.mount_path)
    if not path.startswith(mount.rstrip("/") + "/"):
        raise refused(
            f"The run directory {path} is not below {mount}, where the pods have their volume.",
            "Give run_directory.mount_path the folder that FRENZY_RUN_ROOT names, and mount it there for Airflow.",
        )


def run_path(spec: OfRun) -> str | None:
    """The run directory as a path; None for an object store."""
    if "://" in spec.run_dir and not spec.run_dir.startswith(LOCAL_SCHEME):
        return None
    return posixpath.normpath(spec.run_dir.removeprefix(LOCAL_SCHEME))


def without_nothing(given: Mapping[str, Any]) -> Manifest:
    """``given`` without what is None or empty, as an API server would leave it out."""
    return {name: value for name, value in given.items() if value is not None and value not in ({}, [])}


def refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail, remedy=remedy))


def data_path(spec: OfRun) -> str:
    """Where the prepared data of the run's team lie, as a path; only for a run directory that is one."""
    return posixpath.normpath(PreparedPaths.beside(run_path(spec) or "", spec.job.team).folder)


def runs_read(spec: OfRun) -> tuple[str, ...]:
    """Folders beside the run's own in which the job's model or tokenizer is, as paths; none in an object store.

    checkpoint.warm_start may be a run key, all else is a path.
    """
    path, job = run_path(spec), spec.job
    if path is None:
        return ()
    root = posixpath.dirname(path)
    warm_start = (job.checkpoint.warm_start or "").removeprefix(LOCAL_SCHEME)
    of_model = (job.model.path or "", job.model.tokenizer or "")
    given = ("" if "://" in warm_start else posixpath.join(root, warm_start), *of_model)
    below = (posixpath.relpath(each, root) for each in given if each.startswith("/"))
    runs = {posixpath.join(root, each.partition("/")[0]) for each in below if not each.startswith(".")}
    return tuple(sorted(runs - {path}))
