"""The pods of all attempts as the API server told them last: one list and its watch for all who look in a process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kubernetes.client import CoreV1Api

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.pod_outcome import PodJson, PodSeen, see
from frenzy.adapters.k8s.listing import Listing
from frenzy.adapters.k8s.reflection import Reflection

# Short, so that a connection that died without a word is noticed.
_WATCH_S: Final = 30
_MAX_AGE_S: Final = _WATCH_S + 10.0
_FIRST_LIST_S: Final = 5.0
# So long an end may stay unseen behind a proxy or a cache that keeps a watch open and tells nothing.
_RELIST_S: Final = 300.0

AttemptLabels = frozenset[tuple[str, str]]


class PodMirror:
    """Pods of attempts in ``namespace``. It may lag behind the server, so it proves no end and that nothing is there.

    core_api: makes the client, in the thread that asks first. The watch lasts from then until ``close``.
    """

    def __init__(self, namespace: str, core_api: Callable[[], CoreV1Api]) -> None:
        self._make_core_api = core_api
        self._core: CoreV1Api | None = None
        source = Listing(
            lambda: self._core,
            lambda api: partial(api.list_namespaced_pod, namespace),
            watch_s=_WATCH_S,
            label_selector=f"{labels.OURS},{labels.RUN}",
        )
        self._reflection = Reflection(source, _seen, name="pods of attempts", relist_s=_RELIST_S)
        self._lock = threading.Lock()
        self._generation = -1
        self._attempts: Mapping[AttemptLabels, list[PodSeen]] = {}

    def pods(self, run_key: str, attempt: int) -> list[PodSeen]:
        """The attempt's pods that are known; none while the server does not answer."""
        with self._lock:
            if self._core is None:
                self._core = self._make_core_api()
        self._reflection.keep_going()
        if not self._reflection.is_current(_FIRST_LIST_S, max_age_s=_MAX_AGE_S):
            return []
        generation, pods = self._reflection.snapshot()
        with self._lock:
            if generation > self._generation:
                self._generation, self._attempts = generation, _by_attempt(pods)
            return self._attempts.get(frozenset(labels.attempt_labels(run_key, attempt).items()), [])

    def close(self) -> None:
        """End the watch, and its thread and connections."""
        self._reflection.close()


def _seen(pod: PodJson) -> tuple[AttemptLabels, PodSeen]:
    return frozenset(labels.attempt_labels_of(pod).items()), see(pod, asked=False)


def _by_attempt(pods: tuple[tuple[AttemptLabels, PodSeen], ...]) -> Mapping[AttemptLabels, list[PodSeen]]:
    found: defaultdict[AttemptLabels, list[PodSeen]] = defaultdict(list)
    for attempt, pod in pods:
        found[attempt].append(pod)
    return found
