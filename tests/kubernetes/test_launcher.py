"""The launcher on a real API server: its contract, its pods, and how attempts end by themselves.

It acts as our service account throughout; the test itself looks and meddles as administrator.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from tests.contract.eventually import eventually
from tests.contract.launcher_contract import LauncherContract, World
from tests.kubernetes.bench import Bench, on_node
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.plays import Ends, Evicted, Play, oom_killed

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.launcher.pod_mirror import PodMirror
from frenzy.adapters.k8s.pod_rules import PodRules
from frenzy.core.values.errors import FrenzyError, ReasonCode, TemporaryError
from frenzy.core.values.launch import AttemptResult
from frenzy.ports import WorkersState


@pytest.fixture
def world(bench: Bench) -> World:
    return World(bench.launcher, bench.folder)


class TestKubernetesLauncher(LauncherContract):
    pass


# all or none


def test_one_pod_for_each_node_of_the_placement_and_none_twice(bench: Bench) -> None:
    spec = bench.launched()
    bench.made().launch(spec)
    assert {pod.metadata.labels[labels.NODE_RANK] for pod in bench.pods()} == {"0", "1"}
    assert len(bench.pods()) == 2


def test_a_launch_that_was_broken_off_goes_on_with_the_pods_that_are_there(bench: Bench, tmp_path: Path) -> None:
    spec = bench.launched()
    first = {pod.metadata.name: pod.metadata.uid for pod in bench.pods()}
    (tmp_path / "0123456789ab.notes/attempt-1-pods.json").unlink()  # it died before it could note them
    bench.core.delete_namespaced_pod(labels.pod_name(spec.run_key, 1, 1), bench.namespace)
    eventually(lambda: len(bench.pods()) == 1)
    bench.made().launch(spec)
    after = {pod.metadata.name: pod.metadata.uid for pod in bench.pods()}
    assert after.keys() == first.keys()
    assert sum(after[name] == uid for name, uid in first.items()) == 1


def test_a_pod_of_something_else_is_never_adopted_and_nothing_is_left(bench: Bench) -> None:
    stranger = {
        "metadata": {"name": labels.pod_name("0123456789ab", 1, 1), "labels": labels.attempt_labels("other", 1)},
        "spec": {"containers": [{"name": "main", "image": "example.test/any:1"}]},
    }
    bench.core.create_namespaced_pod(bench.namespace, stranger)
    with pytest.raises(FrenzyError, match="belongs to something else"):
        bench.launcher.launch(bench.spec())
    eventually(lambda: [pod.metadata.labels[labels.RUN] for pod in bench.pods()] == ["other"])
    assert bench.launcher.state(bench.spec()) is WorkersState.NOT_STARTED


def test_a_quota_that_has_room_for_some_pods_leaves_none_and_is_worth_another_try(bench: Bench) -> None:
    quota = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}}
    bench.core.create_namespaced_resource_quota(bench.namespace, quota)
    eventually(lambda: bench.core.read_namespaced_resource_quota("pods", bench.namespace).status.hard)
    with pytest.raises(TemporaryError) as caught:
        bench.launcher.launch(bench.spec())
    assert caught.value.reason.code is ReasonCode.QUOTA_EXCEEDED
    assert "exceeded quota" in caught.value.reason.detail
    eventually(lambda: not bench.pods())
    assert bench.launcher.state(bench.spec()) is WorkersState.NOT_STARTED

    bench.core.delete_namespaced_resource_quota("pods", bench.namespace)

    def launches() -> bool:
        try:
            return bool(bench.launcher.launch(bench.spec()))
        except TemporaryError:
            return False

    eventually(launches)
    assert len(bench.pods()) == 2


# how attempts end


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (Ends(exit_code=97), ReasonCode.CUDA_OUT_OF_MEMORY),
        (Ends(exit_code=96), ReasonCode.BUDGET_EXCEEDED),
        (Ends(exit_code=99), ReasonCode.BAD_CONFIG_OR_DATA),
        (Ends(exit_code=0), None),
        (Ends(exit_code=98), None),
        (Ends(exit_code=1), None),
        (oom_killed(), ReasonCode.HOST_OUT_OF_MEMORY),
        (Ends(exit_code=137), ReasonCode.HOST_OUT_OF_MEMORY),
        (Evicted(), ReasonCode.POD_EVICTED),
        (Ends(exit_code=128, reason="StartError", message="no such file"), ReasonCode.CONTAINER_CONFIG_ERROR),
    ],
)
def test_what_ended_a_pod_is_told(bench: Bench, fake_nodes: FakeNodes, play: Play, code: ReasonCode | None) -> None:
    fake_nodes.play(play)
    assert bench.code_of(bench.launched(node="n1")) is code


def test_the_first_pod_that_failed_decides_and_not_its_peers_lost_connections(
    bench: Bench, fake_nodes: FakeNodes
) -> None:
    lost_peer = Ends(exit_code=1, message=json.dumps({"detail": "connection closed by peer"}))
    fake_nodes.play(on_node(n1=lost_peer, n2=Ends(exit_code=97, after_s=1.0)))
    spec = bench.launched()
    account = bench.end_of(spec)
    assert account.reason is not None
    assert account.reason.code is ReasonCode.CUDA_OUT_OF_MEMORY
    assert account.lost_nodes == (), "the card was too small; the node is as good as any"


def test_an_eviction_blames_its_node_and_outlives_its_pods(bench: Bench, fake_nodes: FakeNodes) -> None:
    fake_nodes.play(on_node(n1=Ends(exit_code=1, after_s=0.5), n2=Evicted()))
    spec = bench.launched()
    assert bench.end_of(spec).lost_nodes == ("n2",)
    bench.launcher.remove(spec.run_key, spec.attempt)
    eventually(lambda: not bench.pods())
    account = bench.made().account(spec)
    assert account.reason is not None
    assert (account.reason.code, account.lost_nodes) == (ReasonCode.POD_EVICTED, ("n2",))
    assert "low on resource" in account.reason.detail


def test_a_result_that_the_workers_could_not_write_is_made_from_their_last_words(
    bench: Bench, fake_nodes: FakeNodes
) -> None:
    words = json.dumps({"exit_code": 97, "last_step": 7, "detail": "rank 0 at step 8: CUDA out of memory"})
    fake_nodes.play(Ends(exit_code=97, message=words))
    spec = bench.launched(node="n1")
    bench.end_of(spec)
    result = bench.runs.result(spec.run_key, 1)
    assert result is not None
    assert (result.exit_code, "rank 0 at step 8: CUDA out of memory" in result.detail) == (97, True)


def test_the_workers_own_result_is_kept(bench: Bench, fake_nodes: FakeNodes) -> None:
    spec = bench.spec(node="n1")
    own = AttemptResult(exit_code=1, last_step=3, total_steps=9, detail="rank 0: ValueError")
    bench.runs.put_result(spec.run_key, 1, own)
    fake_nodes.play(Ends(exit_code=1))
    bench.launcher.launch(spec)
    bench.end_of(spec)
    assert bench.runs.result(spec.run_key, 1) == own


def test_output_of_a_pod_that_died_outlives_it(bench: Bench, fake_nodes: FakeNodes, tmp_path: Path) -> None:
    fake_nodes.play(Ends(exit_code=1, log=("no module named frenzy",)))
    spec = bench.launched(node="n1")
    bench.end_of(spec)
    bench.launcher.remove(spec.run_key, 1)
    eventually(lambda: not bench.pods())
    kept = tmp_path / "0123456789ab/attempt-1/logs/pod-0.log"
    assert "no module named frenzy" in kept.read_text()


# the API


def test_a_look_costs_one_call_however_many_pods_there_are(bench: Bench) -> None:
    spec = bench.launched()
    eventually(lambda: all(pod.status.phase == "Running" for pod in bench.pods()))
    calls: list[str] = []
    counting = client.CoreV1Api(CountingClient(bench.ours.api_client, calls))
    KubernetesLauncher(bench.runs, PodRules(image="x", namespace=bench.namespace), core_api=lambda: counting).state(
        spec
    )
    assert len(calls) == 1, calls


def test_looks_at_many_attempts_cost_one_list_and_its_watch_while_they_run(bench: Bench) -> None:
    specs = [bench.launched(attempt=number) for number in range(1, 11)]
    eventually(lambda: all(pod.status.phase == "Running" for pod in bench.pods()))
    calls: list[str] = []
    counting = client.CoreV1Api(CountingClient(bench.ours.api_client, calls))
    mirror = PodMirror(bench.namespace, lambda: counting)
    rules = PodRules(image="x", namespace=bench.namespace)
    launcher = KubernetesLauncher(bench.runs, rules, core_api=lambda: counting, mirror=mirror)
    try:
        for _ in range(5):
            assert {launcher.state(each) for each in specs} == {WorkersState.ALIVE}
        eventually(lambda: len(calls) == 2)
        for node_rank in (0, 1):
            bench.core.delete_namespaced_pod(labels.pod_name(specs[0].run_key, 1, node_rank), bench.namespace)
        assert bench.end_of(specs[0], launcher).reason is not None
        assert launcher.state(specs[1]) is WorkersState.ALIVE
    finally:
        mirror.close()


class CountingClient:
    """An API client that notes what it is asked."""

    def __init__(self, inner: client.ApiClient, calls: list[str]) -> None:
        self._inner, self._calls = inner, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def call_api(self, path: str, *args: Any, **options: Any) -> Any:
        self._calls.append(path)
        return self._inner.call_api(path, *args, **options)


def test_an_api_that_cannot_be_asked_proves_nothing(bench: Bench) -> None:
    spec = bench.launched()
    nowhere = client.CoreV1Api(client.ApiClient(client.Configuration(host="http://127.0.0.1:9")))
    nowhere.api_client.configuration.retries = 0
    away = KubernetesLauncher(bench.runs, PodRules(image="x", namespace=bench.namespace), core_api=lambda: nowhere)
    assert away.state(spec) is WorkersState.UNKNOWN
    with pytest.raises(TemporaryError):
        away.stop(spec, grace_s=1.0)


def test_the_view_of_reconciliation_names_the_attempts_that_have_pods(bench: Bench) -> None:
    bench.launched(node="n1")
    bench.launched(attempt=2, node="n1")
    assert bench.launcher.remains() == (("0123456789ab", 1), ("0123456789ab", 2))
