"""Looks of many attempts over one mirror. What it was told and what is there are set apart: it may lag behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from kubernetes.client import CoreV1Api
from tests.contract.eventually import eventually
from tests.contract.fake_kube import FakeKube
from tests.unit.adapters.k8s.launcher_bench import Bench, running

from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.launcher.pod_mirror import PodMirror
from frenzy.adapters.k8s.launcher.pod_outcome import see
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersState

RUNNING = running("2026-03-01T12:00:00Z")
NO_NODE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/8 nodes"}],
}
FAILED = {
    "phase": "Failed",
    "containerStatuses": [
        {"name": "trainer", "state": {"terminated": {"exitCode": 97, "finishedAt": "2026-03-01T12:01:00Z"}}}
    ],
}


class Mirrored:
    """A launcher whose mirror hears of the pods of ``bench`` only with ``tell``."""

    def __init__(self, bench: Bench) -> None:
        self.core, self.clock, self.kube, self.bench = bench.core, bench.clock, FakeKube(), bench
        self.num_clients = 0
        self.mirror = PodMirror("train", self._client)
        self.launcher: KubernetesLauncher = bench.launcher(mirror=self.mirror, namespace="train")

    def launched(self, key: str = "0123456789ab") -> LaunchSpec:
        spec = replace(self.bench.spec(), run_key=key)
        self.launcher.launch(spec)
        self.core.set_status(RUNNING)
        return spec

    def tell(self) -> None:
        """The API server tells the mirror of all pods as they are."""
        for name, pod in self.core.pods.items():
            told = json.loads(json.dumps(pod))
            told["metadata"]["namespace"] = "train"
            if self.kube.pods.objects.get(name, {}).get("status") != told["status"]:
                self.kube.put(self.kube.pods, told)

    def knows(self, spec: LaunchSpec) -> bool:
        """Whether the mirror has what was told last of the attempt's pods."""
        known = {each.name: each for each in self.mirror.pods(spec.run_key, spec.attempt)}
        told = (see(each, asked=False) for each in self.kube.pods.objects.values())
        return all(known.get(each.name) == each for each in told if spec.run_key in each.name)

    def told(self, spec: LaunchSpec) -> None:
        self.tell()
        eventually(lambda: self.knows(spec))

    def num_lists_of(self, spec: LaunchSpec) -> tuple[WorkersState, int]:
        """What a look says, and how many lists it took."""
        before = self.core.num_lists
        return self.launcher.state(spec), self.core.num_lists - before

    def _client(self) -> CoreV1Api:
        self.num_clients += 1
        return cast(CoreV1Api, self.kube)


@pytest.fixture
def mirrored(bench: Bench) -> Iterator[Mirrored]:
    made = Mirrored(bench)
    yield made
    made.mirror.close()


# how much is asked


@pytest.mark.parametrize("num_attempts", [1, 25])
def test_what_looks_ask_for_does_not_grow_with_the_attempts(mirrored: Mirrored, num_attempts: int) -> None:
    specs = [mirrored.launched(f"run{number:09d}") for number in range(num_attempts)]
    mirrored.tell()
    assert mirrored.core.num_lists == 0
    for _ in range(10):
        assert {mirrored.launcher.state(each) for each in specs} == {WorkersState.ALIVE}
    assert mirrored.core.num_lists == 0
    eventually(lambda: bool(mirrored.kube.pods.watches))
    assert (mirrored.num_clients, mirrored.kube.pods.num_lists, len(mirrored.kube.pods.watches)) == (1, 1, 1)


def test_an_attempt_of_which_no_pod_is_noted_is_asked_for(mirrored: Mirrored) -> None:
    assert mirrored.num_lists_of(mirrored.bench.spec()) == (WorkersState.NOT_STARTED, 1)
    assert mirrored.num_clients == 0, "a task that starts one attempt needs no mirror"


# what is concluded


def test_pods_that_the_mirror_has_not_heard_of_are_not_missing(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 1)
    assert mirrored.launcher.account(spec).reason is None


def test_a_pod_that_is_gone_is_asked_for_and_looked_for_in_events(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    mirrored.told(spec)
    mirrored.core.pods.clear()
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 0), "nobody has told yet"
    for name in list(mirrored.kube.pods.objects):
        mirrored.kube.remove(mirrored.kube.pods, name)
    eventually(lambda: not mirrored.mirror.pods(spec.run_key, spec.attempt))
    assert mirrored.launcher.state(spec) is WorkersState.UNKNOWN, "somebody may yet say why"
    mirrored.clock.advance(10.0)
    account = mirrored.launcher.account(spec)
    assert account.reason is not None
    assert (account.state, account.reason.code) == (WorkersState.GONE, ReasonCode.POD_DELETED)


def test_an_end_is_seen_at_the_look_after_the_server_told_it(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    mirrored.told(spec)
    mirrored.core.set_status(FAILED)
    mirrored.told(spec)
    account = mirrored.launcher.account(spec)
    assert account.reason is not None
    assert (account.state, account.reason.code) == (WorkersState.GONE, ReasonCode.CUDA_OUT_OF_MEMORY)


def test_an_end_that_the_mirror_knows_of_an_earlier_pod_of_that_name_is_none(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    mirrored.core.set_status(FAILED)
    mirrored.told(spec)
    mirrored.core.set_status(RUNNING)
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 1)
    assert mirrored.launcher.account(spec).reason is None


def test_nothing_is_ended_because_a_mirror_that_lags_shows_it_waiting(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    mirrored.core.set_status(NO_NODE)
    mirrored.told(spec)
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 0)
    mirrored.core.set_status(RUNNING)
    mirrored.clock.advance(1e6)
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 1)
    assert len(mirrored.core.pods) == 2
    assert mirrored.launcher.account(spec).reason is None


def test_workers_that_were_asked_to_end_are_looked_at_anew(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    mirrored.told(spec)
    mirrored.launcher.stop(spec, grace_s=0.0)
    assert mirrored.num_lists_of(spec) == (WorkersState.GONE, 1)


# where there is no mirror to ask


@pytest.mark.parametrize("status", [403, 500])
def test_where_the_mirror_cannot_be_listed_each_look_lists(mirrored: Mirrored, status: int) -> None:
    mirrored.kube.fails_next = [status] * 50
    spec = mirrored.launched()
    mirrored.tell()
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 1)
    mirrored.core.set_status(FAILED)
    assert mirrored.num_lists_of(spec) == (WorkersState.GONE, 1)


def test_while_a_watch_is_refused_each_look_lists_and_afterwards_none_does(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    mirrored.told(spec)
    eventually(lambda: bool(mirrored.kube.pods.watches))
    (watch,) = mirrored.kube.pods.watches
    mirrored.kube.pods.watches.clear()
    mirrored.kube.fails_next = [503]
    watch.send({"type": "ERROR", "object": {"code": 500, "message": "etcd"}})
    eventually(lambda: not mirrored.mirror.pods(spec.run_key, spec.attempt))
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 1)
    eventually(lambda: mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 0))


def test_after_closing_no_thread_and_no_watch_is_left(mirrored: Mirrored) -> None:
    spec = mirrored.launched()
    mirrored.told(spec)
    (thread,) = _threads()
    mirrored.mirror.close()
    assert not thread.is_alive()
    assert all(each.is_closed for each in mirrored.kube.pods.watches)
    assert mirrored.num_lists_of(spec) == (WorkersState.ALIVE, 1), "what was known then is not believed"
    eventually(lambda: not _threads())


def _threads() -> list[Any]:
    return [each for each in threading.enumerate() if each.name == "frenzy-pods of attempts"]
