"""The status that a kubelet writes for a pod, as pure functions of the pod and of what happened."""

from __future__ import annotations

import datetime
from typing import Any

from tests.kubernetes.plays import End, Pod

Status = dict[str, Any]


def timestamp(now_s: float) -> str:
    """As the API writes times: whole seconds, UTC."""
    return datetime.datetime.fromtimestamp(now_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(pod: Pod, reason: str, message: str, *, now_s: float, host_ip: str) -> Status:
    """Accepted by the node, but no container runs yet."""
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {
        "phase": "Pending",
        "startTime": timestamp(now_s),
        "hostIP": host_ip,
        "containerStatuses": [_container(each, pod, state, restarts=0) for each in _containers(pod)],
        "initContainerStatuses": [],
        "conditions": _conditions("False", "ContainersNotReady", now_s),
    }


def running(pod: Pod, *, now_s: float, host_ip: str, pod_ip: str) -> Status:
    state = {"running": {"startedAt": timestamp(now_s)}}
    return {
        "phase": "Running",
        "startTime": timestamp(now_s),
        "hostIP": host_ip,
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "containerStatuses": [_container(each, pod, state, restarts=0) for each in _containers(pod)],
        "initContainerStatuses": [_initialised(each, pod, now_s) for each in pod["spec"].get("initContainers") or ()],
        "conditions": _conditions("True", None, now_s),
    }


def ended(pod: Pod, end: End, *, started_s: float, now_s: float) -> Status:
    """All containers of the pod ended as ``end``."""
    terminated = {
        "exitCode": end.exit_code,
        "reason": end.shown_reason,
        "startedAt": timestamp(started_s),
        "finishedAt": timestamp(now_s),
        "containerID": _container_id(pod),
        **({"message": end.message} if end.message else {}),
    }
    reason = "PodCompleted" if end.exit_code == 0 else "PodFailed"
    return {
        "phase": "Succeeded" if end.exit_code == 0 else "Failed",
        "containerStatuses": [
            _container(each, pod, {"terminated": terminated}, restarts=0) for each in _containers(pod)
        ],
        "conditions": _conditions("False", reason, now_s),
    }


def unseen(pod: Pod) -> Status:
    """Deleted before a container began: kubelets since 1.27 call the pod failed, and make up its containers' end."""
    state = {
        "terminated": {
            "exitCode": 137,
            "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated",
        }
    }
    return {
        "phase": "Failed",
        "containerStatuses": [_container(each, pod, state, restarts=0) for each in _containers(pod)],
    }


def not_ready(*, now_s: float) -> Status:
    """What the node controller writes on the pods of a node that fell silent; a server merges conditions by type."""
    at = timestamp(now_s)
    return {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": at}]}


def evicted(message: str) -> Status:
    """A kubelet that evicts replaces the whole status: nothing is left of conditions and containers."""
    return failed("Evicted", message)


def failed(reason: str, message: str) -> Status:
    """A pod that failed as a pod, whatever its containers did."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "containerStatuses": None,
        "initContainerStatuses": None,
        "conditions": None,
    }


def _containers(pod: Pod) -> list[Pod]:
    return list(pod["spec"]["containers"])


def _container(container: Pod, pod: Pod, state: dict[str, Any], *, restarts: int) -> dict[str, Any]:
    is_running = "running" in state
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "" if "waiting" in state else f"fake://{container['image']}",
        "ready": is_running,
        "started": is_running,
        "restartCount": restarts,
        "state": state,
        **({} if "waiting" in state else {"containerID": _container_id(pod)}),
    }


def _initialised(container: Pod, pod: Pod, now_s: float) -> dict[str, Any]:
    at = timestamp(now_s)
    state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at}}
    return {**_container(container, pod, state, restarts=0), "ready": True}


def _container_id(pod: Pod) -> str:
    return f"fake://{pod['metadata']['uid']}"


def _conditions(ready: str, reason: str | None, now_s: float) -> list[dict[str, str]]:
    """A pod on a node is scheduled and initialised; ready is what differs."""
    at = timestamp(now_s)
    always = [{"type": name, "status": "True", "lastTransitionTime": at} for name in ("Initialized", "PodScheduled")]
    said = {"reason": reason} if reason else {}
    varying = [
        {"type": name, "status": ready, "lastTransitionTime": at, **said} for name in ("Ready", "ContainersReady")
    ]
    return always + varying
