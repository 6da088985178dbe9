"""Pods for tests, and waiting for what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kubernetes import client, watch
from tests.kubernetes.fake_node import GPU

IMAGE = "frenzy.test/any:1"
_TIMEOUT_S = 60


def gpu_pod(name: str, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    """A pod with one container that wants ``gpus``; ``spec`` is added to the pod's."""
    container = {"name": "base", "image": IMAGE, "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def create(core: client.CoreV1Api, namespace: str, *pods: dict[str, Any]) -> None:
    for pod in pods:
        core.create_namespaced_pod(namespace, pod)


def wait_for_pod(
    core: client.CoreV1Api,
    namespace: str,
    name: str,
    is_so: Callable[[client.V1Pod], Any],
    *,
    after: client.V1Pod | None = None,
) -> client.V1Pod:
    """The pod as soon as ``is_so``; fails when that takes too long, with what it was last.

    ``after`` looks at everything that happened since the pod was that, also if it is gone by now.
    """
    last = after
    since = {"resource_version": after.metadata.resource_version} if after else {}
    for event in _events(core, namespace, name, **since):
        last = event["object"]
        if event["type"] != "DELETED" and is_so(last):
            return last
    raise AssertionError(f"pod {name} never came to that; last it was {last and last.status}")


def wait_until_gone(core: client.CoreV1Api, namespace: str, name: str) -> None:
    listed = core.list_namespaced_pod(namespace)
    if name in names(listed.items):
        events = _events(core, namespace, name, resource_version=listed.metadata.resource_version)
        assert any(event["type"] == "DELETED" for event in events), f"pod {name} was never deleted"


def read_log(core: client.CoreV1Api, namespace: str, name: str, **asked: Any) -> str:
    """The log as text; the client library would return the text of a Python bytes literal."""
    answer = core.read_namespaced_pod_log(name, namespace, _preload_content=False, **asked)
    return answer.data.decode()


def _events(core: client.CoreV1Api, namespace: str, name: str, **since: str) -> Iterator[dict[str, Any]]:
    selector = f"metadata.name={name}"
    return watch.Watch().stream(
        core.list_namespaced_pod, namespace, field_selector=selector, timeout_seconds=_TIMEOUT_S, **since
    )


def ended(pod: client.V1Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def terminated(pod: client.V1Pod) -> Any:
    """How the pod's only container ended."""
    (container,) = pod.status.container_statuses
    return container.state.terminated


def waiting_reason(pod: client.V1Pod) -> str | None:
    (container,) = pod.status.container_statuses or (None,)
    return container and container.state.waiting and container.state.waiting.reason


def names(items: Iterable[Any]) -> set[str]:
    return {each.metadata.name for each in items}
