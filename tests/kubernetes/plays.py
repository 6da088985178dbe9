"""What becomes of a pod on a fake node, as values.

    Ends(exit_code=97, message='{"reason": "..."}')     its container ends so, after_s seconds
    oom_killed()                                        137, reason OOMKilled
    Runs(stop_code=98)                                  until it is asked to stop, then ends with that code
    Performs(body)                                      a Python function is its container's process
    Evicted()                                           the kubelet throws it out: no container statuses
    ImagePullBackOff()                                  it waits for its image
    NeverStarts()                                       it stays in ContainerCreating

Every running container that is asked to stop ends with ``stop_code`` after ``stop_s`` seconds, or with 137 when
its grace period is over first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Pod = Mapping[str, Any]
"""A pod as the API's JSON."""

TERMINATED = 143
KILLED = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a container ended; ``message`` is its termination message."""

    exit_code: int = 0
    reason: str | None = None
    message: str = ""

    @property
    def shown_reason(self) -> str:
        """As a kubelet words it where the container runtime gave no other."""
        return self.reason or ("Completed" if self.exit_code == 0 else "Error")


class Container(Protocol):
    """What a ``Performs`` body sees of the container that it plays."""

    pod: Pod
    env: Mapping[str, str]
    command: tuple[str, ...]
    pod_ip: str
    stopping: threading.Event

    def log(self, line: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The container runs ``after_s`` seconds, writes ``log``, and ends by itself."""

    exit_code: int = 0
    reason: str | None = None
    message: str = ""
    after_s: float = 0.05
    log: tuple[str, ...] = ()
    stop_code: int = TERMINATED
    stop_s: float = 0.0

    @property
    def end(self) -> End:
        return End(exit_code=self.exit_code, reason=self.reason, message=self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The container writes ``log`` and runs until it is stopped."""

    log: tuple[str, ...] = ()
    stop_code: int = TERMINATED
    stop_message: str = ""
    stop_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Performs:
    """``body`` is the container's process: called in a thread of its own, its result is the container's end.

    It should look at ``stopping``; it is given the grace period to return.
    """

    body: Callable[[Container], End]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """The kubelet evicts the pod ``after_s`` seconds after its start; nothing is told of its containers."""

    after_s: float = 0.05
    message: str = "The node was low on resource: memory."
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePullBackOff:
    message: str = "Back-off pulling image"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverStarts:
    reason: str = "ContainerCreating"
    message: str = ""


Play = Ends | Runs | Performs | Evicted | ImagePullBackOff | NeverStarts
Script = Callable[[Pod], Play]


def play_of(pod: Pod, script: Script) -> Play:
    """What becomes of ``pod``: pods of a DaemonSet, which a cluster puts on every node, are none of the test's."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return Runs() if any(each["kind"] == "DaemonSet" for each in owners) else script(pod)


def succeeds(*log: str, after_s: float = 0.05) -> Ends:
    return Ends(after_s=after_s, log=log)


def oom_killed(*log: str, after_s: float = 0.05) -> Ends:
    """The kernel killed the container for its host memory."""
    return Ends(exit_code=KILLED, reason="OOMKilled", after_s=after_s, log=log)
