"""The pod that prepares a run's data: a CPU, no GPU, and of all runs' folders its own and its team's prepared data.

It reads the runs that its model or tokenizer comes from, too. Pure and deterministic, as the workers' pods, and under
the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher import pod_parts as parts
from frenzy.adapters.k8s.launcher.pod_parts import Manifest
from frenzy.adapters.k8s.pod_overlay import with_overlays_of_all
from frenzy.adapters.k8s.pod_rules import HOME_VOLUME, OWN_MOUNTS, TMP_VOLUME, PodRules
from frenzy.core.values.prepared_data import PreparingSpec

_MODULE: Final = ("-m", "frenzy.trainer.prepare_data")
_FIXED: Final = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    **parts.OWN_VARIABLES,
    "FRENZY_TERMINATION_LOG": parts.TERMINATION_LOG,
}
_MOUNTS: Final = {name: OWN_MOUNTS[name] for name in (TMP_VOLUME, HOME_VOLUME)}


def preparing_pod(spec: PreparingSpec, rules: PodRules, rank: int = 0) -> Manifest:
    """The pod of that ``rank`` for one try; those from 1 on help the first.

    Raises PermanentError when the run directory is on no volume of the pods, and for secrets that pods cannot refer to.
    """
    parts.check_run_directory(spec, rules)
    helper = {labels.PREPARING_RANK: str(rank)} if rank else {}
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": parts.without_nothing(
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
        **parts.common_spec(rules),
        "nodeSelector": {**selector, **_architecture(rules)},
        "tolerations": [parts.toleration(each) for each in rules.tolerations],
        "securityContext": parts.pod_security(rules),
        "containers": [_container(spec, rules, rank)],
        "volumes": [
            *(parts.empty_folder(name, rules.ephemeral_storage_bytes) for name in _MOUNTS),
            *parts.given_volumes(spec, rules),
        ],
    }
    return parts.without_nothing(given)


def _architecture(rules: PodRules) -> Mapping[str, str]:
    """Of an image for one kind of processors; nodes without GPUs are in no inventory that could have left them out."""
    return {labels.ARCHITECTURE: rules.architectures[0].value} if len(rules.architectures) == 1 else {}


def _container(spec: PreparingSpec, rules: PodRules, rank: int) -> Manifest:
    share = ("--rank", str(rank), "--count", str(rules.preparing_pods)) if rules.preparing_pods > 1 else ()
    return parts.main_container(
        rules,
        rules.image,
        _MODULE,
        arguments=("--request", spec.request, *share),
        environment=parts.environment(spec, rules, {"OMP_NUM_THREADS": "1"}, _FIXED),
        resources=_resources(rules),
        mounts=_own_mounts(spec, rules),
    )


def _resources(rules: PodRules) -> Manifest:
    """No limit of CPUs: the tokenizer uses what is idle."""
    memory = parts.mebibytes(rules.preparing_memory_bytes)
    return {
        "requests": {
            "cpu": parts.cpus(rules.preparing_cpus),
            "memory": memory,
            "ephemeral-storage": parts.mebibytes(rules.requested_disk_bytes),
        },
        "limits": {"memory": memory, "ephemeral-storage": parts.mebibytes(rules.ephemeral_storage_bytes)},
    }


def _own_mounts(spec: PreparingSpec, rules: PodRules) -> Iterator[Manifest]:
    for name, place in _MOUNTS.items():
        yield {"name": name, "mountPath": place}
    path = parts.run_path(spec)
    if path is not None:
        yield from parts.run_mounts(rules, written=(path, parts.data_path(spec)), read=parts.runs_read(spec))
