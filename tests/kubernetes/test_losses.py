"""What becomes of an attempt on a real API server whose pods never begin, or are taken away by the cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kubernetes import client
from tests.contract import values
from tests.contract.eventually import eventually
from tests.kubernetes.bench import Bench, on_node
from tests.kubernetes.fake_node import FakeNode
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.plays import ImagePullBackOff, NeverStarts, Play, Runs

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.pod_rules import TaintEffect, Toleration, TolerationOperator
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersAccount, WorkersState

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
    eventually(lambda: not bench.pods())


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
        fake_nodes.add([FakeNode(name="small", resources={"cpu": "3"})])
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
    bench.core.delete_namespaced_pod(bench.pods()[0].metadata.name, bench.namespace, grace_period_seconds=60)
    assert bench.launcher.state(spec) is WorkersState.UNKNOWN, "a second deletion is no sign of life"
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
