"""The few calls of CoreV1Api that the launcher makes, over pods in memory whose status the test sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiException

Json = dict[str, Any]


class Answer:
    """A whole answer, or one that is read in pieces."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def stream(self, amt: int) -> Iterator[bytes]:
        return (self.data[at : at + amt] for at in range(0, len(self.data), amt))

    def release_conn(self) -> None:
        pass


class FakeCore:
    """Pods by name. refusals: statuses and messages that the next creations are refused with; None lets one through.

    leaving: a deleted pod stays until ``confirm``, as on a node whose kubelet takes its time. events: of any pod.
    silent: names of nodes that do not answer.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.refusals: list[tuple[int, str] | None] = []
        self.num_creations = self.num_lists = 0
        self.leaving = False
        self.lines: list[str] = []
        self.events: list[Json] = []
        self.silent: set[str] = set()

    def set_status(self, status: Json) -> None:
        """Of every pod."""
        for pod in self.pods.values():
            pod["status"] = status

    def confirm(self) -> None:
        """The kubelets confirm that pods which were deleted are gone."""
        self.pods = {name: pod for name, pod in self.pods.items() if "deletionTimestamp" not in pod["metadata"]}

    def create_namespaced_pod(self, _namespace: str, pod: Json, **_options: Any) -> Answer:
        self.num_creations += 1
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            status, message = refusal
            error = ApiException(status=status)
            error.body = json.dumps({"message": message})
            raise error
        name = pod["metadata"]["name"]
        if name in self.pods:
            error = ApiException(status=409)
            error.body = json.dumps({"reason": "AlreadyExists", "message": f'pods "{name}" already exists'})
            raise error
        made = json.loads(json.dumps(pod))
        made["metadata"].update(uid=f"uid-{name}", creationTimestamp="2026-03-01T12:00:00Z")
        self.pods[name] = {"status": {"phase": "Pending"}, **made}
        return self._json(self.pods[name])

    def list_namespaced_pod(self, _namespace: str, *, label_selector: str, **_options: Any) -> Answer:
        self.num_lists += 1
        wanted = dict(each.split("=") for each in label_selector.split(","))
        pods = [each for each in self.pods.values() if wanted.items() <= each["metadata"]["labels"].items()]
        return self._json({"items": pods})

    def read_namespaced_pod(self, name: str, _namespace: str, **_options: Any) -> Answer:
        if name not in self.pods:
            raise ApiException(status=404)
        return self._json(self.pods[name])

    def delete_namespaced_pod(self, name: str, _namespace: str, **_options: Any) -> Answer:
        if name not in self.pods:
            raise ApiException(status=404)
        self.pods[name]["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat()
        if not self.leaving:
            self.confirm()
        return self._json({})

    def read_namespaced_pod_log(self, _name: str, _namespace: str, *, tail_lines: int, **_options: Any) -> Answer:
        return Answer("\n".join(self.lines[-tail_lines:]).encode())

    def list_namespaced_event(self, _namespace: str, **_options: Any) -> Answer:
        return self._json({"items": self.events})

    def read_node(self, name: str, **_options: Any) -> Answer:
        ready = "Unknown" if name in self.silent else "True"
        return self._json({"status": {"conditions": [{"type": "Ready", "status": ready}]}})

    def _json(self, value: Json) -> Answer:
        return Answer(json.dumps(value).encode())
