"""Plays the kubelets of fake nodes: one watch for all of them, one small task for each pod.

What is real: the API server, its scheduler, and the controllers that taint, evict and collect. What is played
is what a kubelet would do: a pod that was scheduled to a fake node gets the statuses that its script says, a
pod that is deleted is stopped and let go, and its log is served over TLS.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import ssl
import time
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from aiohttp import ClientError, web
from tests.kubernetes import pod_status
from tests.kubernetes.api_json import MERGE, ApiError, ApiJson, WatchExpired
from tests.kubernetes.fake_node import FAKE, FakeNode, conditions, lease_object, node_object
from tests.kubernetes.playing import FakeContainer, Playing, happens, path_of, stopped
from tests.kubernetes.plays import (
    KILLED,
    End,
    Ends,
    Evicted,
    ImagePullBackOff,
    NeverStarts,
    Performs,
    Play,
    Pod,
    Runs,
    Script,
    play_of,
)
from tests.kubernetes.pod_log import PodLog, log_endpoint

_STRATEGIC: Final = "application/strategic-merge-patch+json"
_ON_NODES: Final = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"
_HEARTBEAT_S: Final = 10.0
_POLL_S: Final = 0.1
_NUM_CALLS_AT_ONCE: Final = 32
_NUM_BODIES_AT_ONCE: Final = 64
# What the API server and the node controller put on a node until they have seen that it is ready.
_NOT_YET: Final = "node.kubernetes.io/not-ready"
_DEADLINE: Final = "Pod was active on the node longer than the specified deadline"


class Player:
    """The kubelets of all fake nodes of one owner; lives in one event loop."""

    def __init__(self, api: ApiJson, *, owner: str, address: str, sends_heartbeats: bool) -> None:
        self.errors: list[BaseException] = []
        self.script: Script = lambda _pod: Runs()
        self._api = api
        self._owner = owner
        self._address = address
        self._sends_heartbeats = sends_heartbeats
        self._port = 0
        self._nodes: dict[str, FakeNode] = {}
        self._uids: dict[str, str] = {}
        self._lost: set[str] = set()
        self._pods: dict[str, Playing] = {}
        self._ips = (f"127.{64 + n // 65025 % 64}.{n // 255 % 255}.{n % 255 + 1}" for n in itertools.count(1))
        self._at_once = asyncio.Semaphore(_NUM_CALLS_AT_ONCE)
        # Apart from the other, which calls within these may wait for.
        self._bounded = asyncio.Semaphore(_NUM_CALLS_AT_ONCE)
        self._tasks: list[asyncio.Task[None]] = []
        self._threads = ThreadPoolExecutor(_NUM_BODIES_AT_ONCE, thread_name_prefix="fake-container")
        self._server: web.AppRunner | None = None

    async def start(self, serving: ssl.SSLContext) -> None:
        """Serve logs and take pods from now on."""
        self._server = web.AppRunner(log_endpoint(self._find_log), shutdown_timeout=0.1, access_log=None)
        await self._server.setup()
        await web.TCPSite(self._server, self._address, 0, ssl_context=serving).start()
        self._port = self._server.addresses[0][1]
        version = await self._take_all()
        self._tasks.append(asyncio.create_task(self._follow(version)))
        if self._sends_heartbeats:
            self._tasks.append(asyncio.create_task(self._beat()))

    async def add(self, nodes: Iterable[FakeNode]) -> None:
        """Register ``nodes``; returns when the scheduler may use them."""
        new = {each.name: each for each in nodes}
        self._nodes |= new
        await self._each(self._register(each) for each in new.values())
        while not await self._are_usable(new):
            await asyncio.sleep(_POLL_S)

    async def lose(self, name: str) -> None:
        """The node falls silent: its pods are played no more, and the controllers hear that nobody knows.

        The node controller says of its pods that they are not ready when it finds the silence itself, which here it is
        told.
        """
        self._lost.add(name)
        silent = self._on(name)
        for playing in silent:
            playing.abandon()
            self._pods.pop(playing.pod["metadata"]["uid"])
        await self._say_ready(name, "Unknown", "NodeStatusUnknown")
        await self._each(self._report(each, pod_status.not_ready(now_s=time.time())) for each in silent)

    async def find_again(self, name: str) -> None:
        """A lost node is back; its pods that still run are started anew, those that were deleted are let go."""
        self._lost.discard(name)
        await self._say_ready(name, "True", "KubeletReady")
        await self._take_all()

    async def remove(self, name: str) -> None:
        """The node and its machine are gone for good, as when a cloud takes a spot instance back."""
        self._lost.add(name)
        for playing in self._on(name):
            playing.abandon()
            self._pods.pop(playing.pod["metadata"]["uid"])
        self._nodes.pop(name)
        await self._api.call("DELETE", f"/api/v1/nodes/{name}")

    async def stop(self) -> None:
        """Take the nodes away, and whatever still runs on them."""
        for task in self._tasks:
            task.cancel()
        playing = list(self._pods.values())
        for each in playing:
            each.abandon()
        await asyncio.gather(*self._tasks, *(each.task for each in playing if each.task), return_exceptions=True)
        await self._each(self._let_go(each.pod) for each in playing)
        await self._api.call("DELETE", f"/api/v1/nodes?labelSelector={FAKE}={self._owner}")
        if self._server is not None:
            await self._server.cleanup()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- nodes

    async def _register(self, node: FakeNode) -> None:
        described = node_object(node, owner=self._owner, address=self._address, port=self._port, now_s=time.time())
        made = await self._api.call("POST", "/api/v1/nodes", described)
        self._uids[node.name] = made["metadata"]["uid"]
        if self._sends_heartbeats:
            await self._renew(node.name)

    async def _are_usable(self, nodes: Mapping[str, FakeNode]) -> bool:
        listed = await self._api.call("GET", f"/api/v1/nodes?labelSelector={FAKE}={self._owner}")
        taints = {each["metadata"]["name"]: each["spec"].get("taints") or () for each in listed["items"]}
        return all(_NOT_YET not in {taint["key"] for taint in taints.get(name, ())} for name in nodes)

    async def _say_ready(self, name: str, ready: str, reason: str) -> None:
        status = {"status": {"conditions": conditions(ready, reason, time.time())}}
        await self._api.call("PATCH", f"/api/v1/nodes/{name}/status", status, content=_STRATEGIC)

    async def _beat(self) -> None:
        """Renew the leases of all nodes, as kubelets do; without it a node controller gives them up.

        A node has none while it is being registered. After a beat that failed comes another one.
        """
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            due = [each for each in self._uids if each in self._nodes and each not in self._lost]
            with suppress(ApiError, ClientError):
                await self._each(self._renew(each) for each in due)

    async def _renew(self, name: str) -> None:
        """Like a kubelet: the lease goes with its node, so one of an earlier node may vanish under us."""
        lease = lease_object(name, owner_uid=self._uids[name], microtime=_microtime())
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        try:
            await self._api.call("PATCH", f"{leases}/{name}", lease, content=MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._api.call("POST", leases, lease)

    # -- pods

    async def _follow(self, version: str) -> None:
        """Everything that happens to pods on nodes, for ever."""
        while True:
            try:
                async for kind, pod in self._api.watch(_ON_NODES, version):
                    version = pod["metadata"]["resourceVersion"]
                    self._see(kind, pod)
            except WatchExpired:
                version = await self._take_all()

    async def _take_all(self) -> str:
        listed = await self._api.call("GET", _ON_NODES)
        for pod in listed["items"]:
            self._see("ADDED", pod)
        return str(listed["metadata"]["resourceVersion"])

    def _see(self, kind: str, pod: Pod) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        if node not in self._nodes or node in self._lost:
            return
        playing = self._pods.get(uid)
        if kind == "DELETED":
            if playing is not None:
                playing.abandon()
                del self._pods[uid]
            return
        if playing is None:
            playing = self._pods[uid] = Playing(pod=pod, ip=pod["status"].get("podIP") or next(self._ips))
            playing.task = asyncio.create_task(self._live(playing))
        if pod["metadata"].get("deletionTimestamp"):
            playing.grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            playing.stopping.set()

    async def _live(self, playing: Playing) -> None:
        """One pod's life on its node, until it is deleted."""
        try:
            if not playing.stopping.is_set() and playing.pod["status"]["phase"] not in ("Succeeded", "Failed"):
                await self._perform(playing, play_of(playing.pod, self.script))
            playing.log.close()
            await playing.stopping.wait()
            await self._let_go(playing.pod)
        except Exception as error:
            self.errors.append(error)

    async def _perform(self, playing: Playing, play: Play) -> None:
        if isinstance(play, ImagePullBackOff):
            await self._wait_for_the_end(playing, "ImagePullBackOff", play.message)
            return
        if isinstance(play, NeverStarts):
            await self._wait_for_the_end(playing, play.reason, play.message)
            return
        started_s = time.time()
        status = pod_status.running(playing.pod, now_s=started_s, host_ip=self._address, pod_ip=playing.ip)
        await self._report(playing, status)
        try:
            async with asyncio.timeout(playing.pod["spec"].get("activeDeadlineSeconds")):
                end = await self._run(playing, play)
        except TimeoutError:
            await self._report(playing, pod_status.failed("DeadlineExceeded", _DEADLINE))
            return
        if isinstance(end, Evicted):
            await self._report(playing, pod_status.evicted(end.message))
        else:
            await self._report(playing, pod_status.ended(playing.pod, end, started_s=started_s, now_s=time.time()))

    async def _wait_for_the_end(self, playing: Playing, reason: str, message: str) -> None:
        status = pod_status.waiting(playing.pod, reason, message, now_s=time.time(), host_ip=self._address)
        await self._report(playing, status)
        await playing.stopping.wait()
        await self._report(playing, pod_status.unseen(playing.pod))

    async def _run(self, playing: Playing, play: Ends | Runs | Performs | Evicted) -> End | Evicted:
        if isinstance(play, Performs):
            return await self._run_body(playing, play)
        for line in play.log:
            playing.log.add(line)
        if isinstance(play, Runs):
            await playing.stopping.wait()
            return await stopped(playing, play.stop_code, play.stop_s, play.stop_message)
        is_stopped = await happens(playing.stopping, within_s=play.after_s)
        if isinstance(play, Evicted):
            return play
        return await stopped(playing, play.stop_code, play.stop_s) if is_stopped else play.end

    async def _run_body(self, playing: Playing, play: Performs) -> End:
        loop = asyncio.get_running_loop()
        container = playing.body = FakeContainer(playing, playing.pod["spec"]["nodeName"], loop)
        body = loop.run_in_executor(self._threads, play.body, container)
        stopped = asyncio.create_task(playing.stopping.wait())
        try:
            await asyncio.wait((body, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not body.done():
                container.stopping.set()
                await asyncio.wait((body,), timeout=playing.grace_s)
            return body.result() if body.done() else End(exit_code=KILLED)
        except Exception as error:
            self.errors.append(error)
            return End(exit_code=1, message=repr(error))
        finally:
            container.stopping.set()
            stopped.cancel()

    async def _report(self, playing: Playing, status: pod_status.Status) -> None:
        try:
            await self._call("PATCH", f"{playing.path}/status", {"status": status}, content=_STRATEGIC)
        except ApiError as error:
            # Whoever deletes a pod without grace does not wait for its kubelet.
            if error.status != 404:
                raise

    async def _let_go(self, pod: Pod) -> None:
        """The kubelet's last word: nothing of the pod is left on the node."""
        own = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        try:
            await self._call("DELETE", path_of(pod), own)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _on(self, node: str) -> list[Playing]:
        return [each for each in self._pods.values() if each.pod["spec"]["nodeName"] == node]

    def _find_log(self, namespace: str, name: str) -> PodLog | None:
        for each in self._pods.values():
            if path_of(each.pod) == f"/api/v1/namespaces/{namespace}/pods/{name}":
                return each.log
        return None

    async def _call(self, method: str, path: str, body: dict[str, Any], *, content: str = "application/json") -> None:
        async with self._at_once:
            await self._api.call(method, path, body, content=content)

    async def _each(self, calls: Iterable[Coroutine[Any, Any, None]]) -> None:
        """All ``calls``, a bounded number at a time."""

        async def one(call: Coroutine[Any, Any, None]) -> None:
            async with self._bounded:
                await call

        await asyncio.gather(*(one(each) for each in calls))


def _microtime() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
