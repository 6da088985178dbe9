"""What the launcher remembers of an attempt's pods in its run directory, where it survives them and every process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from frenzy.adapters.k8s.launcher.pod_outcome import PodEnd, PodSeen, better
from frenzy.core.values.errors import ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsNote:
    """The pods that were made, where they came to run, how they ended.

    leaves_by_s: when a pod that was deleted should be gone, as of its first deletion: API servers of today let a second
    one move that later. hindered: when each code that kept a pod from beginning was first seen, by pod and code.
    missed: when a pod was first found to be over though nothing told why. All in seconds since the epoch.
    """

    pods: tuple[str, ...]
    nodes: Mapping[str, str] = field(default_factory=dict)
    leaves_by_s: Mapping[str, float] = field(default_factory=dict)
    hindered: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    missed: Mapping[str, float] = field(default_factory=dict)
    ends: tuple[PodEnd, ...] = ()

    def with_ends(self, ends: Iterable[PodEnd]) -> PodsNote:
        known = {each.pod: each for each in self.ends}
        for each in ends:
            known[each.pod] = better(known.get(each.pod), each)
        return replace(self, ends=tuple(known[name] for name in sorted(known)))

    def with_nodes(self, seen: Iterable[PodSeen]) -> PodsNote:
        found = {each.name: each.node for each in seen if each.node is not None}
        return replace(self, nodes={**self.nodes, **found})

    def with_leaving(self, seen: Iterable[PodSeen]) -> PodsNote:
        """A time of leaving moves earlier, as when somebody shortens a pod's grace, and never later."""
        told = {each.name: each.leaves_by_s for each in seen if each.leaves_by_s is not None}
        known = {name: min(by_s, self.leaves_by_s.get(name, by_s)) for name, by_s in told.items()}
        return replace(self, leaves_by_s={**self.leaves_by_s, **known})

    def as_first_told(self, pod: PodSeen) -> PodSeen:
        """``pod`` with the earliest time of leaving that is known of it."""
        return replace(pod, leaves_by_s=self.leaves_by_s.get(pod.name, pod.leaves_by_s))

    def with_hindrances(self, seen: Iterable[PodSeen], now_s: float) -> PodsNote:
        """A code that comes again counts from its first time: pulling an image fails in turns with backing off."""
        known = dict(self.hindered)
        for each in seen:
            if each.hindrance is not None:
                known[each.name] = {str(each.hindrance.code): now_s, **known.get(each.name, {})}
        return replace(self, hindered=known)

    def with_missed(self, pods: Iterable[str], now_s: float) -> PodsNote:
        return replace(self, missed={**dict.fromkeys(pods, now_s), **self.missed})

    def hindered_for_s(self, pod: PodSeen, now_s: float) -> float:
        """How long ``pod`` has been kept by what keeps it now; 0 when nothing does."""
        code = None if pod.hindrance is None else str(pod.hindrance.code)
        return 0.0 if code is None else now_s - self.hindered.get(pod.name, {}).get(code, now_s)

    def unexplained(self) -> tuple[str, ...]:
        """Pods of which nothing is known, or only that somebody deleted them."""
        known = {each.pod for each in self.ends if each.code is not ReasonCode.POD_DELETED}
        return tuple(each for each in self.pods if each not in known)

    def unexplained_since(self, since_s: float) -> tuple[str, ...]:
        """Of those, the ones that were first missed later than ``since_s``."""
        return tuple(each for each in self.unexplained() if self.missed.get(each, since_s) > since_s)
