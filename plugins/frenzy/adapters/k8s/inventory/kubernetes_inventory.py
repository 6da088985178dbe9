"""The inventory of a Kubernetes cluster, kept up to date by watching its nodes and pods."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from kubernetes.client import CoreV1Api

from frenzy.adapters.k8s.inventory.claimed_devices import (
    Allocation,
    ClaimUse,
    SliceFacts,
    class_resource,
    with_allocation,
)
from frenzy.adapters.k8s.inventory.kinds import Notice
from frenzy.adapters.k8s.inventory.nodes import Declared, Found, nodes_as_declared, nodes_from
from frenzy.adapters.k8s.listing import Listing
from frenzy.adapters.k8s.objects import NodeFacts, PodUse
from frenzy.adapters.k8s.pod_rules import PodRules
from frenzy.adapters.k8s.reflection import AbsentError, ForbiddenError, GoneError, Json, Reflection
from frenzy.adapters.spec.cluster_file import load_cluster_file
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError

logger = logging.getLogger(__name__)

_FIRST_LIST_S: Final = 30.0
_RETRY_AFTER_S: Final = 5.0
# After which a server that had no dynamic resource allocation is asked again: it may have been brought up to date.
_ABSENT_S: Final = 600.0
# Ended pods hold nothing, and pods without a node hold nothing yet.
_NOT_ENDED: Final = "status.phase!=Succeeded,status.phase!=Failed"


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
        self.pods = PodSource(core_api, namespace)
        self._nodes = Reflection(NodeSource(core_api), NodeFacts.of, name="nodes")
        self._pods = Reflection(self.pods, PodUse.of, name="pods")
        self._devices = None if resource_api is None else _Devices(resource_api)

    def keep_going(self) -> None:
        for each in self._all:
            each.keep_going()

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
        for each in self._all:
            each.close()


class _Devices:
    """What dynamic resource allocation offers and has given away."""

    def __init__(self, resource_api: Callable[[], Any]) -> None:
        slices = DeviceSource(resource_api, lambda api: api.list_resource_slice)
        claims = DeviceSource(resource_api, lambda api: api.list_resource_claim_for_all_namespaces)
        classes = DeviceSource(resource_api, lambda api: api.list_device_class)
        self._slices = Reflection(slices, SliceFacts.of, name="resource slices")
        self._claims = Reflection(claims, ClaimUse.of, name="resource claims")
        self._classes = Reflection(classes, class_resource, name="device classes")

    @property
    def reflections(self) -> tuple[Reflection[Any], ...]:
        return self._slices, self._claims, self._classes

    def snapshot(self) -> tuple[object, Allocation]:
        of_slices, slices = self._slices.snapshot()
        of_claims, claims = self._claims.snapshot()
        of_classes, resources = self._classes.snapshot()
        return (of_slices, of_claims, of_classes), Allocation(slices=slices, claims=claims, resources=resources)


class NodeSource(Listing):
    """All nodes."""

    def __init__(self, core_api: Callable[[], CoreV1Api]) -> None:
        super().__init__(core_api, lambda api: api.list_node)


class PodSource(Listing):
    """Pods that have not ended: of all namespaces where that is allowed, else of ours."""

    def __init__(self, core_api: Callable[[], CoreV1Api], namespace: str) -> None:
        super().__init__(core_api, self._of_all_or_ours, field_selector=_NOT_ENDED)
        self._namespace = namespace
        self.sees_only_own = False

    def list(self) -> tuple[Iterable[Json], str]:
        try:
            return super().list()
        except ForbiddenError:
            if self.sees_only_own:
                raise
            self.sees_only_own = True
            return super().list()

    def _of_all_or_ours(self, api: Any) -> Callable[..., Any]:
        listed: Callable[..., Any] = api.list_pod_for_all_namespaces
        return partial(api.list_namespaced_pod, self._namespace) if self.sees_only_own else listed


class DeviceSource(Listing):
    """One kind of ``resource.k8s.io``, of all namespaces: nothing where the server has no such kind, or forbids it."""

    def list(self) -> tuple[Iterable[Json], str]:
        try:
            return super().list()
        except (AbsentError, ForbiddenError):
            return (), ""

    def watch(self, version: str) -> Iterator[Json]:
        if not version:
            self.closed.wait(_ABSENT_S)
            raise GoneError("there was nothing to watch")
        return super().watch(version)
