"""One pod that a fake node has taken, and its container where a function plays it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

from tests.kubernetes.plays import KILLED, End, Pod
from tests.kubernetes.pod_log import PodLog


class FakeContainer:
    """See ``plays.Container``."""

    def __init__(self, playing: Playing, node: str, loop: asyncio.AbstractEventLoop) -> None:
        first = playing.pod["spec"]["containers"][0]
        self.pod = playing.pod
        self.pod_ip = playing.ip
        self.command = (*(first.get("command") or ()), *(first.get("args") or ()))
        self.env = {each["name"]: _value(each, playing, node) for each in first.get("env") or ()}
        self.stopping = threading.Event()
        self._log = playing.log
        self._loop = loop

    def log(self, line: str) -> None:
        self._loop.call_soon_threadsafe(self._log.add, line)


@dataclass(slots=True, kw_only=True)
class Playing:
    """One pod that a fake node has taken."""

    pod: Pod
    ip: str
    log: PodLog = field(default_factory=PodLog)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    grace_s: float = 0.0
    body: FakeContainer | None = None
    task: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        return path_of(self.pod)

    def abandon(self) -> None:
        """Stop playing at once, whatever it was doing."""
        self.log.close()
        if self.body is not None:
            self.body.stopping.set()
        if self.task is not None:
            self.task.cancel()


async def stopped(playing: Playing, code: int, after_s: float, message: str = "") -> End:
    """How a container ends that was asked to: by itself, or killed when its grace is over."""
    await asyncio.sleep(min(after_s, playing.grace_s))
    return End(exit_code=code, message=message) if after_s <= playing.grace_s else End(exit_code=KILLED)


async def happens(event: asyncio.Event, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def path_of(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _value(variable: Pod, playing: Playing, node: str) -> str:
    """An environment variable's value; of references only those to the pod's own fields are known."""
    source = (variable.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
    known = {
        None: variable.get("value") or "",
        "metadata.name": playing.pod["metadata"]["name"],
        "metadata.namespace": playing.pod["metadata"]["namespace"],
        "metadata.uid": playing.pod["metadata"]["uid"],
        "spec.nodeName": node,
        "status.podIP": playing.ip,
    }
    return str(known[source])
