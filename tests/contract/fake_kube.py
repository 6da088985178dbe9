"""The few calls of CoreV1Api and ResourceV1Api that the inventory makes: over objects in memory, watches see all."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kubernetes.client import ApiException

Json = dict[str, Any]


@dataclass
class Answer:
    """A whole answer."""

    data: bytes


class Stream:
    """A watch: lines in chunks that end where they like."""

    def __init__(self) -> None:
        self._chunks: queue.Queue[bytes | None] = queue.Queue()
        self.is_closed = False

    def send(self, event: Json) -> None:
        line = json.dumps(event).encode() + b"\n"
        for part in (line[:7], line[7:]):
            self._chunks.put(part)

    def shutdown(self) -> None:
        self._chunks.put(None)

    def close(self) -> None:
        self.is_closed = True
        self.shutdown()

    def stream(self, **_options: Any) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            yield chunk


@dataclass
class Kind:
    """Objects of one kind by name, and who watches them."""

    objects: dict[str, Json] = field(default_factory=dict)
    watches: list[Stream] = field(default_factory=list)
    num_lists: int = 0


class FakeKube:
    """Nodes, pods, and devices. forbids_all_pods: pods of other namespaces may not be listed. forbids_nodes: as said.

    refuses_devices: with which status dynamic resource allocation is refused: 404 of an old server, None of a new one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 1
        self.nodes, self.pods = Kind(), Kind()
        self.slices, self.claims, self.classes = Kind(), Kind(), Kind()
        self.refuses_devices: int | None = 404
        self.forbids_all_pods = False
        self.forbids_nodes = False
        self.fails_next: list[int] = []

    def put(self, kind: Kind, found: Json) -> None:
        with self._lock:
            self._version += 1
            metadata = found["metadata"]
            name = metadata["name"]
            event = "MODIFIED" if name in kind.objects else "ADDED"
            metadata.update(uid=f"uid-{name}", resourceVersion=str(self._version))
            kind.objects[name] = found
            self._send(kind, event, found)

    def remove(self, kind: Kind, name: str) -> None:
        with self._lock:
            self._version += 1
            self._send(kind, "DELETED", kind.objects.pop(name))

    def expire(self, kind: Kind) -> None:
        """Tell all who watch that their version is too old."""
        with self._lock:
            for each in kind.watches:
                each.send({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
                each.shutdown()
            kind.watches.clear()

    def list_node(self, **options: Any) -> Answer | Stream:
        if self.forbids_nodes:
            raise ApiException(status=403, reason="Forbidden")
        return self._answer(self.nodes, options, list(self.nodes.objects.values()))

    def list_pod_for_all_namespaces(self, **options: Any) -> Answer | Stream:
        if self.forbids_all_pods:
            raise ApiException(status=403, reason="Forbidden")
        return self._answer(self.pods, options, list(self.pods.objects.values()))

    def list_namespaced_pod(self, namespace: str, **options: Any) -> Answer | Stream:
        pods = [each for each in self.pods.objects.values() if each["metadata"]["namespace"] == namespace]
        return self._answer(self.pods, options, pods)

    def list_resource_slice(self, **options: Any) -> Answer | Stream:
        return self._devices(self.slices, options)

    def list_resource_claim_for_all_namespaces(self, **options: Any) -> Answer | Stream:
        return self._devices(self.claims, options)

    def list_device_class(self, **options: Any) -> Answer | Stream:
        return self._devices(self.classes, options)

    def _devices(self, kind: Kind, options: Json) -> Answer | Stream:
        if self.refuses_devices is not None:
            raise ApiException(status=self.refuses_devices, reason="as the test wants")
        return self._answer(kind, options, list(kind.objects.values()))

    def _answer(self, kind: Kind, options: Json, objects: list[Json]) -> Answer | Stream:
        with self._lock:
            if self.fails_next:
                raise ApiException(status=self.fails_next.pop(0), reason="as the test wants")
            if options.get("watch"):
                stream = Stream()
                kind.watches.append(stream)
                # what changed between the list and this watch
                for each in kind.objects.values():
                    if int(each["metadata"]["resourceVersion"]) > int(options["resource_version"]):
                        stream.send({"type": "MODIFIED", "object": each})
                return stream
            kind.num_lists += 1
            start = int(options.get("_continue") or 0)
            page = objects[start : start + options["limit"]]
            metadata: Json = {"resourceVersion": str(self._version)}
            if start + len(page) < len(objects):
                metadata["continue"] = str(start + len(page))
            return Answer(json.dumps({"items": page, "metadata": metadata}).encode())

    def _send(self, kind: Kind, event: str, found: Json) -> None:
        for each in kind.watches:
            each.send({"type": event, "object": {**found, "metadata": {**found["metadata"]}}})
