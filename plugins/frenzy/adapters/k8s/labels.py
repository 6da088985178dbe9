"""Names of the labels and annotations on pods and nodes, and values that Kubernetes accepts.

Pods are found again by ``selector``: a pod of another attempt never matches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from frenzy.core.values.cluster import NODE_GROUP as NODE_GROUP
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.prepared_data import PreparingSpec
from frenzy.core.values.resource_plan import short_hash

NAME: Final = "app.kubernetes.io/name"
PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
INSTANCE: Final = "app.kubernetes.io/instance"

RUN: Final = "frenzy.dev/run"
ATTEMPT: Final = "frenzy.dev/attempt"
NODE_RANK: Final = "frenzy.dev/node-rank"
GPU_TYPE: Final = "frenzy.dev/gpu-type"
PLAN: Final = "frenzy.dev/plan"
TEAM: Final = "frenzy.dev/team"
QUEUE: Final = "frenzy.dev/queue"
JOB: Final = "frenzy.dev/job"
# On pods that prepare data: the run, and which of its tries. They hold no GPU, so that the ledger counts none of them.
PREPARING: Final = "frenzy.dev/preparing"
PREPARING_NUMBER: Final = "frenzy.dev/preparing-number"
PREPARING_RANK: Final = "frenzy.dev/preparing-rank"

PREDICTED_BYTES: Final = "frenzy.dev/predicted-bytes"
LEASE: Final = "frenzy.dev/lease"
# The name that the placement has for the node: of an autoscaled group, not the one the pod comes to run on.
PLACED_ON: Final = "frenzy.dev/placed-on"

KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_GROUP_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_RETRIABLE: Final = "kueue.x-k8s.io/retriable-in-group"

# On nodes. GPU_TYPE there: the type's name where the labels of the driver do not tell it, or tell it wrong.
HOSTNAME: Final = "kubernetes.io/hostname"
ARCHITECTURE: Final = "kubernetes.io/arch"
GPU_COUNT: Final = "frenzy.dev/gpu-count"
# In the labels that a node has in the inventory: the resource its GPUs are asked for by, its group.
GPU_RESOURCE: Final = "frenzy.dev/gpu-resource"
OWN_PREFIX: Final = "frenzy.dev/"

MANAGER: Final = "frenzy"
TRAINER: Final = "frenzy-trainer"
CONTAINER: Final = "trainer"
# Puts the launcher of scripts into a pod whose image may lack it.
COPYING_CONTAINER: Final = "frenzy-launcher"

_MAX_LABEL_CHARACTERS: Final = 63
_HASH_CHARACTERS: Final = 8
_VALID_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_VALID_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def label_value(text: str) -> str:
    """``text`` if it is a valid label value; else what is valid of it, with a hash of the whole."""
    if _VALID_VALUE.fullmatch(text):
        return text
    return _hashed(text, re.sub(r"[^A-Za-z0-9_.-]+", "-", text))


def name_part(text: str) -> str:
    """``text`` if it is a valid DNS label (RFC 1123); else what is valid of it, with a hash of the whole."""
    if _VALID_NAME.fullmatch(text):
        return text
    return _hashed(text, re.sub(r"[^a-z0-9-]+", "-", text.lower()))


def pod_name(run_key: str, attempt: int, node_rank: int) -> str:
    """The same for the same attempt and node, so that starting it twice conflicts."""
    return name_part(f"frenzy-{run_key}-a{attempt}-n{node_rank}")


def attempt_labels(run_key: str, attempt: int) -> dict[str, str]:
    """What is on every pod of an attempt, and on no other pod of the namespace."""
    return {MANAGED_BY: MANAGER, RUN: label_value(run_key), ATTEMPT: str(attempt)}


def attempt_labels_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Of ``pod``'s labels, those that say which attempt it belongs to."""
    given = pod["metadata"].get("labels") or {}
    return {name: given[name] for name in (MANAGED_BY, RUN, ATTEMPT) if name in given}


def selector(run_key: str, attempt: int | None = None) -> str:
    """The label selector of an attempt's pods; without an attempt, of all the run's."""
    wanted = attempt_labels(run_key, attempt or 0)
    if attempt is None:
        del wanted[ATTEMPT]
    return ",".join(f"{name}={value}" for name, value in wanted.items())


OURS: Final = f"{MANAGED_BY}={MANAGER}"


def pod_labels(spec: LaunchSpec, node_rank: int) -> dict[str, str]:
    """Labels of the pod of ``node_rank``: the recommended ones, then what it works on and for whom."""
    return {
        NAME: TRAINER,
        PART_OF: MANAGER,
        INSTANCE: label_value(spec.run_key),
        **attempt_labels(spec.run_key, spec.attempt),
        NODE_RANK: str(node_rank),
        GPU_TYPE: label_value(spec.plan.gpu_type),
        PLAN: label_value(spec.plan.plan_id),
        JOB: label_value(spec.job.name),
        TEAM: label_value(spec.job.team),
        QUEUE: label_value(spec.job.queue),
    }


def preparing_labels(spec: PreparingSpec) -> dict[str, str]:
    """Labels of the pod that prepares the data of ``spec``; its name for the network rules is the trainer's."""
    return {
        NAME: TRAINER,
        PART_OF: MANAGER,
        INSTANCE: label_value(spec.run_key),
        MANAGED_BY: MANAGER,
        PREPARING: label_value(spec.run_key),
        PREPARING_NUMBER: str(spec.number),
        JOB: label_value(spec.job.name),
        TEAM: label_value(spec.job.team),
        QUEUE: label_value(spec.job.queue),
    }


def pod_annotations(spec: LaunchSpec, node_rank: int) -> dict[str, str]:
    """What is told to people and to the inventory; annotations may be any text."""
    return {
        PREDICTED_BYTES: str(spec.plan.memory.peak_allocated_bytes),
        LEASE: f"{spec.run_key}/{spec.attempt}",
        PLACED_ON: spec.placement.allocations[node_rank].node,
    }


def is_ours(labels: Mapping[str, str]) -> bool:
    """Whether a pod with ``labels`` holds GPUs that the ledger knows of. Only for pods of our own namespace."""
    return labels.get(MANAGED_BY) == MANAGER and RUN in labels


def _hashed(whole: str, readable: str) -> str:
    room = _MAX_LABEL_CHARACTERS - _HASH_CHARACTERS - 1
    kept = readable[:room].strip("-_.")
    return "-".join(part for part in (kept, short_hash(whole, length=_HASH_CHARACTERS)) if part)
