"""The inventory of a Kubernetes cluster, kept up to date by watching its nodes and pods."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from kubernetes.client import ApiException, CoreV1Api
from urllib3.exceptions import HTTPError

from frenzy.adapters.k8s.inventory.claimed_devices import (
    Allocation,
    ClaimUse,
    ClassFacts,
    SliceFacts,
    with_allocation,
)
from frenzy.adapters.k8s.inventory.kinds import Notice
from frenzy.adapters.k8s.inventory.nodes import Declared, Found, nodes_as_declared, nodes_from
from frenzy.adapters.k8s.inventory.reflection import (
    AbsentError,
    ForbiddenError,
    GoneError,
    Json,
    ListFailedError,
    Reflection,
)
from frenzy.adapters.k8s.objects import NodeFacts, PodUse
from frenzy.adapters.k8s.pod_rules import PodRules
from frenzy.adapters.spec.cluster_file import load_cluster_file
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError

logger = logging.getLogger(__name__)

_PAGE: Final = 500
_WATCH_S: Final = 240
_CONNECT_S: Final = 10.0
# Longer than the server lets a watch last: a connection that died without a word is noticed then.
_READ_S: Final = _WATCH_S + 30.0
_FIRST_LIST_S: Final = 30.0
_RETRY_AFTER_S: Final = 5.0
_END_S: Final = 5.0
# After which a server that had no dynamic resource allocation is asked again: it may have been brought up to date.
_ABSENT_S: Final = 600.0
# Ended pods hold nothing, and pods without a node hold nothing yet.
_NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"
_FORBIDDEN: Final = 403
_ABSENT: Final = 404
_GONE: Final = 410


class KubernetesInventory:
    """GPU types and nodes of a cluster, from its Node objects and pods.

    core_api: makes a client; it is called once for each of the two watches, in their threads. resource_api: the same
    for ResourceV1Api, where dynamic resource allocation is to be read; a server without it is one without devices.
    cluster_file: its gpu_types and autoscaled groups count; its nodes only where the service account may not list
    the cluster's. patience_s: how long the first
    answer is waited for. The watches begin with the first question and last until ``close``.
    """

    def __init__(
        self,
        core_api: Callable[[], CoreV1Api],
        rules: PodRules,
        *,
        cluster_file: str | Path,
        resource_api: Callable[[], Any] | None = None,
        patience_s: float = _FIRST_LIST_S,
    ) -> None:
        self._resource_api = resource_api
        self._core_api, self._rules, self._cluster_file = core_api, rules, Path(cluster_file)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._watches: _Watches | None = None
        self._told: frozenset[Notice] = frozenset()
        self._last: tuple[object, Found] | None = None

    def cluster(self) -> Cluster:
        """As of the last word of the API server, which is waited for once.

        Raises SpecError for a bad cluster file, and TemporaryError while the server has never answered.
        """
        return self.found().cluster

    def found(self) -> Found:
        """The cluster, and what people should know of its nodes. Raises as ``cluster`` does."""
        file = load_cluster_file(self._cluster_file)
        watches = self._running()
        watches.wait_for_lists(self._patience_s)
        if watches.may_not_list_nodes:
            return self._as_declared(file.cluster)
        declared = Declared(gpu_types=file.gpu_types, groups=file.groups)
        generation, nodes, pods, allocation = watches.snapshot()
        key = (generation, declared)
        with self._lock:
            if self._last is None or self._last[0] != key:
                self._last = (key, nodes_from(*with_allocation(nodes, pods, allocation), self._rules, declared))
            found = self._with_gaps(self._last[1], watches)
            self._tell(found.notices)
        return found

    def close(self) -> None:
        """End the watches."""
        with self._lock:
            watches, self._watches = self._watches, None
        if watches is not None:
            watches.stop()

    def _running(self) -> _Watches:
        """The watches of this very process: threads do not survive a fork."""
        with self._lock:
            if self._watches is None or self._watches.pid != os.getpid():
                self._watches = _Watches(self._core_api, self._resource_api, self._rules.namespace)
            self._watches.keep_going()
            return self._watches

    def _as_declared(self, cluster: Cluster) -> Found:
        if not cluster.nodes:
            detail = f"Nodes may not be listed, and {self._cluster_file} describes none."
            remedy = "Bind the ClusterRole frenzy-nodes of deploy/kubernetes/rbac.yaml, or describe the nodes there."
            reason = Reason(code=ReasonCode.API_UNREACHABLE, detail=detail, remedy=remedy)
            raise TemporaryError(reason, retry_after_s=_RETRY_AFTER_S)
        found = nodes_as_declared(cluster, self._rules)
        with self._lock:
            self._tell(found.notices)
        return found

    def _with_gaps(self, found: Found, watches: _Watches) -> Found:
        if not watches.pods.sees_only_own:
            return found
        gap = Notice(
            node="all nodes",
            detail="Pods of other namespaces may not be listed: GPUs that they hold count as free.",
            remedy="Bind the ClusterRole frenzy-pods-of-others, or keep others off the GPU nodes.",
        )
        return Found(cluster=found.cluster, notices=(*found.notices, gap))

    def _tell(self, notices: tuple[Notice, ...]) -> None:
        """Log what is new, in one line for all nodes of which the same is to be said."""
        nodes: dict[tuple[str, str], list[str]] = {}
        for each in notices:
            if each not in self._told:
                nodes.setdefault((each.detail, each.remedy), []).append(each.node)
        for (detail, remedy), names in nodes.items():
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            logger.warning("%s%s: %s %s", names[0], others, detail, remedy)
        self._told = frozenset(notices)


class _Watches:
    """A thread for nodes, one for pods, and three for devices that are claimed; they begin with ``keep_going``."""

    def __init__(
        self, core_api: Callable[[], CoreV1Api], resource_api: Callable[[], Any] | None, namespace: str
    ) -> None:
        self.pid = os.getpid()
        self.pods, self._node_source = PodSource(core_api, namespace), NodeSource(core_api)
        self._nodes = Reflection(self._node_source, NodeFacts.of, name="nodes")
        self._pods = Reflection(self.pods, PodUse.of, name="pods")
        self._devices = None if resource_api is None else _Devices(resource_api)
        self._stop = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def keep_going(self) -> None:
        """Start each thread that does not run, for the first time or because something ended it."""
        for each in self._all:
            if each.name not in self._threads or not self._threads[each.name].is_alive():
                thread = threading.Thread(target=each.run, args=(self._stop,), name=f"frenzy-{each.name}", daemon=True)
                thread.start()
                self._threads[each.name] = thread

    def wait_for_lists(self, patience_s: float) -> None:
        for each in self._all:
            is_known = each.has_answered if each is self._nodes else each.has_listed
            if not is_known.wait(patience_s):
                detail = f"The Kubernetes API server has not listed its {each.name}: {each.problem or 'no answer yet'}."
                reason = Reason(code=ReasonCode.API_UNREACHABLE, detail=detail)
                raise TemporaryError(reason, retry_after_s=_RETRY_AFTER_S)

    @property
    def may_not_list_nodes(self) -> bool:
        return self._nodes.is_refused

    @property
    def _all(self) -> tuple[Reflection[Any], ...]:
        return self._nodes, self._pods, *(() if self._devices is None else self._devices.reflections)

    def snapshot(self) -> tuple[object, tuple[NodeFacts, ...], tuple[PodUse, ...], Allocation]:
        nodes_generation, nodes = self._nodes.snapshot()
        pods_generation, pods = self._pods.snapshot()
        devices_generation, allocation = (0, Allocation()) if self._devices is None else self._devices.snapshot()
        return (nodes_generation, pods_generation, devices_generation), nodes, pods, allocation

    def stop(self) -> None:
        """End both threads; one that cannot be reached now ends with its watch, and keeps nothing up."""
        self._stop.set()
        for source in (self.pods, self._node_source, *(() if self._devices is None else self._devices.sources)):
            source.close()
        for thread in self._threads.values():
            thread.join(_END_S)


class _Devices:
    """What dynamic resource allocation offers and has given away."""

    def __init__(self, resource_api: Callable[[], Any]) -> None:
        self.sources = (
            DeviceSource(resource_api, lambda api: api.list_resource_slice),
            DeviceSource(resource_api, lambda api: api.list_resource_claim_for_all_namespaces),
            DeviceSource(resource_api, lambda api: api.list_device_class),
        )
        slices, claims, classes = self.sources
        self._slices = Reflection(slices, SliceFacts.of, name="resource slices")
        self._claims = Reflection(claims, ClaimUse.of, name="resource claims")
        self._classes = Reflection(classes, ClassFacts.of, name="device classes")

    @property
    def reflections(self) -> tuple[Reflection[Any], ...]:
        return self._slices, self._claims, self._classes

    def snapshot(self) -> tuple[object, Allocation]:
        of_slices, slices = self._slices.snapshot()
        of_claims, claims = self._claims.snapshot()
        of_classes, classes = self._classes.snapshot()
        return (of_slices, of_claims, of_classes), Allocation(slices=slices, claims=claims, classes=classes)


class _Listing:
    """Lists and watches with one client, made when it is first needed."""

    def __init__(self, make_api: Callable[[], Any]) -> None:
        self._make = make_api
        self._api: Any = None
        self._answer: Any = None

    def close(self) -> None:
        """End a watch that another thread waits in."""
        answer = self._answer
        with suppress(ValueError, RuntimeError, OSError):  # it has ended meanwhile
            if answer is not None:
                answer.shutdown()

    def _core(self) -> Any:
        if self._api is None:
            with _translated():
                self._api = self._make()
        return self._api

    def _events(self, list_objects: Callable[..., Any], version: str, **options: str) -> Iterator[Json]:
        """The events of one watch, which the server ends after some minutes."""
        with _translated():
            self._answer = list_objects(
                watch=True,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_S,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, _READ_S),
                **options,
            )
            try:
                for line in _lines(self._answer):
                    yield json.loads(line)
            finally:
                self._answer.close()
                self._answer = None


class NodeSource(_Listing):
    """All nodes."""

    def list(self) -> tuple[Iterable[Json], str]:
        return _pages(self._core().list_node)

    def watch(self, version: str) -> Iterator[Json]:
        return self._events(self._core().list_node, version)


class PodSource(_Listing):
    """Pods that have not ended: of all namespaces where that is allowed, else of ours."""

    def __init__(self, core_api: Callable[[], CoreV1Api], namespace: str) -> None:
        super().__init__(core_api)
        self._namespace = namespace
        self.sees_only_own = False

    def list(self) -> tuple[Iterable[Json], str]:
        try:
            return _pages(self._lister(), field_selector=_NOT_ENDED)
        except ForbiddenError:
            if self.sees_only_own:
                raise
            self.sees_only_own = True
            return _pages(self._lister(), field_selector=_NOT_ENDED)

    def watch(self, version: str) -> Iterator[Json]:
        return self._events(self._lister(), version, field_selector=_NOT_ENDED)

    def _lister(self) -> Callable[..., Any]:
        api = self._core()
        listed: Callable[..., Any] = api.list_pod_for_all_namespaces
        return partial(api.list_namespaced_pod, self._namespace) if self.sees_only_own else listed


class DeviceSource(_Listing):
    """One kind of ``resource.k8s.io``, of all namespaces: nothing where the server has no such kind, or forbids it."""

    def __init__(self, resource_api: Callable[[], Any], lister: Callable[[Any], Callable[..., Any]]) -> None:
        super().__init__(resource_api)
        self._lister = lister
        self._closed = threading.Event()

    def list(self) -> tuple[Iterable[Json], str]:
        try:
            return _pages(self._lister(self._core()))
        except (AbsentError, ForbiddenError):
            return (), ""

    def watch(self, version: str) -> Iterator[Json]:
        if not version:
            self._closed.wait(_ABSENT_S)
            raise GoneError("there was nothing to watch")
        return self._events(self._lister(self._core()), version)

    def close(self) -> None:
        self._closed.set()
        super().close()


def _pages(list_page: Callable[..., Any], **options: str) -> tuple[Iterable[Json], str]:
    """All objects as parsed JSON (models of thousands take seconds), and their version, which all pages have.

    One page at a time is in memory: those after the first are asked for as they are needed.
    """
    first = _page(list_page, None, **options)
    return _objects(first, list_page, **options), str(first["metadata"]["resourceVersion"])


def _objects(page: Json, list_page: Callable[..., Any], **options: str) -> Iterator[Json]:
    while True:
        yield from page["items"]
        token = page["metadata"].get("continue")
        if not token:
            return
        page = _page(list_page, token, **options)


def _page(list_page: Callable[..., Any], token: str | None, **options: str) -> Json:
    with _translated():
        answer = list_page(
            limit=_PAGE,
            _continue=token,
            _preload_content=False,
            _request_timeout=(_CONNECT_S, _FIRST_LIST_S),
            **options,
        )
        page: Json = json.loads(answer.data)
    return page


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(amt=None, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


@contextmanager
def _translated() -> Iterator[None]:
    """The client's many errors as ours."""
    try:
        yield
    except ApiException as error:
        if error.status == _GONE:
            raise GoneError(str(error.reason)) from error
        refusal = {_FORBIDDEN: ForbiddenError, _ABSENT: AbsentError}.get(error.status, ListFailedError)
        raise refusal(f"{error.status} {error.reason}") from error
    except (HTTPError, OSError, ValueError) as error:
        raise ListFailedError(f"{type(error).__name__}: {error}") from error
