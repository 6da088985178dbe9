"""The launcher on a real API server: its contract, and what becomes of an attempt at each end of its pods.

It acts as our service account throughout; the test itself looks and meddles as administrator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from tests.contract import values
from tests.contract.eventually import eventually
from tests.contract.launcher_contract import LauncherContract, World
from tests.kubernetes.fake_node import FakeNode
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.plays import Ends, Evicted, ImagePullBackOff, NeverStarts, Play, Pod, Runs, oom_killed

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher import KubernetesLauncher
from frenzy.adapters.k8s.pod_rules import PodRules, RunDirectory, TaintEffect, Toleration, TolerationOperator
from frenzy.adapters.storage.run_store import FsspecRunStore
from frenzy.core.errors import FrenzyError, ReasonCode, TemporaryError
from frenzy.core.launch import AttemptResult, ExitCode, LaunchSpec
from frenzy.core.units import MIB
from frenzy.ports import WorkersAccount, WorkersState


class Bench:
    """A launcher in a namespace of its own, with the nodes n1 and n2; specs put one pod on each.

    core: the administrator's. ours: what the launcher may use.
    """

    def __init__(self, core: client.CoreV1Api, ours: client.CoreV1Api, namespace: str, folder: Path) -> None:
        self.core, self.ours, self.namespace, self.folder = core, ours, namespace, folder
        self.runs = FsspecRunStore(str(folder))
        self.launcher = self.made()

    def made(self, **rules: Any) -> KubernetesLauncher:
        """Another launcher over the same pods, as another process would have."""
        common = PodRules(
            image="example.test/trainer:1",
            namespace=self.namespace,
            run_directory=RunDirectory(mount_path=str(self.folder), host_path=str(self.folder)),
            host_memory_per_gpu_bytes=64 * MIB,
            shm_per_gpu_bytes=16 * MIB,
            ephemeral_storage_bytes=64 * MIB,
        )
        return KubernetesLauncher(self.runs, replace(common, **rules), core_api=lambda: self.ours)

    def spec(self, attempt: int = 1, *, node: str | None = None) -> LaunchSpec:
        spec = values.launch_spec(f"{self.folder}/0123456789ab", attempt_number=attempt)
        return spec if node is None else replace(spec, placement=values.placement(**{node: 2}))

    def launched(self, **spec: Any) -> LaunchSpec:
        made = self.spec(**spec)
        self.launcher.launch(made)
        return made

    def end_of(self, spec: LaunchSpec, launcher: KubernetesLauncher | None = None) -> WorkersAccount:
        """What is known once the workers are gone."""
        seen = launcher or self.launcher

        def look() -> WorkersAccount | None:
            account = seen.account(spec)
            return account if account.state is WorkersState.GONE else None

        found = eventually(look)
        assert found is not None
        return found

    def pods(self) -> list[Any]:
        found: list[Any] = self.core.list_namespaced_pod(self.namespace).items
        return found

    def code_of(self, spec: LaunchSpec) -> ReasonCode | None:
        reason = self.end_of(spec).reason
        return None if reason is None else reason.code


@pytest.fixture
def bench(
    core_api: client.CoreV1Api,
    our_api: client.CoreV1Api,
    kube_namespace: str,
    fake_nodes: FakeNodes,
    tmp_path: Path,
) -> Iterator[Bench]:
    fake_nodes.add([FakeNode(name="n1"), FakeNode(name="n2")])
    fake_nodes.play(Runs(stop_code=ExitCode.CHECKPOINTED))
    made = Bench(core_api, our_api, kube_namespace, tmp_path)
    yield made
    for run_key, attempt in made.launcher.remains():
        made.launcher.remove(run_key, attempt)
    eventually(lambda: not made.pods())


@pytest.fixture
def world(bench: Bench) -> World:
    return World(bench.launcher, bench.folder)


class TestKubernetesLauncher(LauncherContract):
    pass


def on_node(**plays: Play) -> Callable[[Pod], Play]:
    """What becomes of a pod by the node that it is on."""
    return lambda pod: plays[pod["spec"]["nodeName"]]


# all or none


def test_one_pod_for_each_node_of_the_placement_and_none_twice(bench: Bench) -> None:
    spec = bench.launched()
    bench.made().launch(spec)
    assert {pod.metadata.labels[labels.NODE_RANK] for pod in bench.pods()} == {"0", "1"}
    assert len(bench.pods()) == 2


def test_a_launch_that_was_broken_off_goes_on_with_the_pods_that_are_there(bench: Bench, tmp_path: Path) -> None:
    spec = bench.launched()
    first = {pod.metadata.name: pod.metadata.uid for pod in bench.pods()}
    (tmp_path / "0123456789ab/attempt-1/launcher-pods.json").unlink()  # it died before it could note them
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


# workers that never begin


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (ImagePullBackOff(), ReasonCode.IMAGE_PULL_FAILED),
        (NeverStarts(reason="CreateContainerConfigError", message="no secret"), ReasonCode.CONTAINER_CONFIG_ERROR),
    ],
)
def test_pods_that_cannot_begin_are_given_up_after_a_while_all_of_them(
    bench: Bench, fake_nodes: FakeNodes, play: Play, code: ReasonCode
) -> None:
    fake_nodes.play(on_node(n1=Runs(), n2=play))
    spec = bench.launched()
    waiting = eventually(lambda: bench.launcher.account(spec).waiting)
    assert (waiting.code, bench.launcher.state(spec)) == (code, WorkersState.ALIVE)
    account = bench.end_of(spec, bench.made(scheduling_patience_s=0.1))
    assert account.reason is not None
    assert account.reason.code is code
    assert not bench.pods()


def test_a_pod_that_no_node_takes_is_given_up_with_the_schedulers_words(bench: Bench) -> None:
    spec = replace(bench.spec(), placement=values.placement(n1=1, away=1))
    bench.launcher.launch(spec)
    account = bench.end_of(spec, bench.made(scheduling_patience_s=0.5))
    assert account.reason is not None
    assert account.reason.code is ReasonCode.POD_UNSCHEDULABLE
    assert "nodes are available" in account.reason.detail
    assert account.lost_nodes == ("away",)


def test_waiting_for_an_image_takes_patience(bench: Bench, fake_nodes: FakeNodes) -> None:
    fake_nodes.play(ImagePullBackOff())
    spec = bench.launched(node="n1")
    eventually(lambda: bench.launcher.account(spec).waiting)
    assert bench.made(scheduling_patience_s=3600.0).state(spec) is WorkersState.ALIVE


# what the cluster takes away


def test_a_pod_that_somebody_deletes_is_a_loss_although_it_saved_a_checkpoint(bench: Bench) -> None:
    spec = bench.launched(node="n1")
    eventually(lambda: bench.pods()[0].status.phase == "Running")
    bench.core.delete_namespaced_pod(labels.pod_name(spec.run_key, 1, 0), bench.namespace)
    assert bench.code_of(spec) is ReasonCode.POD_DELETED


def test_a_pod_that_gives_way_to_a_higher_priority_is_a_loss(
    bench: Bench, fake_nodes: FakeNodes, core_api: client.CoreV1Api
) -> None:
    scheduling = client.SchedulingV1Api(core_api.api_client)
    urgent = f"urgent-{bench.namespace}"
    scheduling.create_priority_class({"metadata": {"name": urgent}, "value": 1000})
    try:
        fake_nodes.add([FakeNode(name="small", resources={"cpu": "2"})])
        spec = bench.launched(node="small")
        eventually(lambda: bench.pods()[0].status.phase == "Running")
        container = {"name": "main", "image": "example.test/any:1", "resources": {"requests": {"cpu": "2"}}}
        pod = {
            "metadata": {"name": "urgent"},
            "spec": {
                "priorityClassName": urgent,
                "nodeSelector": {"kubernetes.io/hostname": "small"},
                "containers": [container],
            },
        }
        bench.core.create_namespaced_pod(bench.namespace, pod)
        try:
            account = bench.end_of(spec)
        finally:
            bench.core.delete_namespaced_pod("urgent", bench.namespace)
        assert account.reason is not None
        assert (account.reason.code, account.lost_nodes) == (ReasonCode.POD_PREEMPTED, ("small",))
    finally:
        scheduling.delete_priority_class(urgent)


def test_workers_on_a_silent_node_are_unknown_until_the_node_is_removed(bench: Bench, fake_nodes: FakeNodes) -> None:
    leave_soon = Toleration(
        key="node.kubernetes.io/unreachable",
        operator=TolerationOperator.EXISTS,
        effect=TaintEffect.NO_EXECUTE,
        toleration_seconds=1,
    )
    spec = bench.spec(node="n2")
    bench.made(tolerations=(leave_soon,)).launch(spec)
    eventually(lambda: bench.pods()[0].status.phase == "Running")
    fake_nodes.lose("n2")
    eventually(lambda: bench.launcher.state(spec) is WorkersState.UNKNOWN, within_s=120)
    told = eventually(lambda: bench.launcher.account(spec).reason, within_s=120)
    assert (told.code, bench.launcher.state(spec)) == (ReasonCode.NODE_LOST, WorkersState.UNKNOWN)
    fake_nodes.remove("n2")
    account = eventually(lambda: gone(bench, spec), within_s=180)
    assert account.reason is not None
    assert (account.reason.code, account.lost_nodes) == (ReasonCode.NODE_LOST, ("n2",))


def test_a_node_that_goes_away_with_its_pods_is_lost_though_nobody_saw_them_leave(
    bench: Bench, fake_nodes: FakeNodes
) -> None:
    spec = bench.launched(node="n2")
    eventually(lambda: bench.pods()[0].status.phase == "Running")
    assert bench.launcher.state(spec) is WorkersState.ALIVE
    fake_nodes.remove("n2")
    eventually(lambda: not bench.pods(), within_s=180)
    account = bench.end_of(spec)
    assert account.reason is not None
    assert (account.reason.code, account.lost_nodes) == (ReasonCode.NODE_LOST, ("n2",))


def gone(bench: Bench, spec: LaunchSpec) -> WorkersAccount | None:
    account = bench.launcher.account(spec)
    return account if account.state is WorkersState.GONE else None


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


def test_the_sweeps_view_names_the_attempts_that_have_pods(bench: Bench) -> None:
    bench.launched(node="n1")
    bench.launched(attempt=2, node="n1")
    assert bench.launcher.remains() == (("0123456789ab", 1), ("0123456789ab", 2))
