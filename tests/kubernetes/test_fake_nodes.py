"""Pods on fake nodes: scheduled by the real scheduler, played to each end, readable, and gone afterwards."""

from __future__ import annotations

import sys
import time

import pytest
from kubernetes import client
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fake_node import FakeNode, gpu_nodes
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.plays import (
    Container,
    End,
    Ends,
    Evicted,
    ImagePullBackOff,
    NeverStarts,
    Performs,
    Runs,
    oom_killed,
    play_of,
    succeeds,
)
from tests.kubernetes.pods import (
    create,
    ended,
    gpu_pod,
    names,
    read_log,
    terminated,
    wait_for_pod,
    wait_until_gone,
    waiting_reason,
)

A100 = "NVIDIA-A100-SXM4-80GB"


@pytest.fixture
def one_node(fake_nodes: FakeNodes) -> FakeNodes:
    fake_nodes.add(gpu_nodes("a100", 1, product=A100, memory_mib=81920))
    return fake_nodes


def test_a_pod_runs_where_the_scheduler_put_it_and_succeeds(
    core_api: client.CoreV1Api, kube_namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add(gpu_nodes("a100", 2, product=A100, memory_mib=81920))
    fake_nodes.add(gpu_nodes("h100", 2, product="NVIDIA-H100-80GB-HBM3", memory_mib=81559))
    fake_nodes.play(succeeds())

    wanted = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    create(core_api, kube_namespace, gpu_pod("one", 8, nodeSelector=wanted))

    pod = wait_for_pod(core_api, kube_namespace, "one", ended)
    assert (pod.status.phase, terminated(pod).exit_code, terminated(pod).reason) == ("Succeeded", 0, "Completed")
    assert pod.spec.node_name in ("h100-0", "h100-1")


@pytest.mark.parametrize("exit_code", [1, 97, 98, 99])
def test_an_exit_code_and_its_termination_message_can_be_read(
    core_api: client.CoreV1Api, kube_namespace: str, one_node: FakeNodes, exit_code: int
) -> None:
    one_node.play(Ends(exit_code=exit_code, message='{"step": 7}'))

    create(core_api, kube_namespace, gpu_pod("one"))

    pod = wait_for_pod(core_api, kube_namespace, "one", ended)
    assert pod.status.phase == "Failed"
    end = terminated(pod)
    assert (end.exit_code, end.reason, end.message) == (exit_code, "Error", '{"step": 7}')


def test_a_container_killed_for_host_memory_says_so(
    core_api: client.CoreV1Api, kube_namespace: str, one_node: FakeNodes
) -> None:
    one_node.play(oom_killed())

    create(core_api, kube_namespace, gpu_pod("one"))

    end = terminated(wait_for_pod(core_api, kube_namespace, "one", ended))
    assert (end.exit_code, end.reason) == (137, "OOMKilled")


def test_an_evicted_pod_tells_nothing_of_its_containers(
    core_api: client.CoreV1Api, kube_namespace: str, one_node: FakeNodes
) -> None:
    one_node.play(Evicted())

    create(core_api, kube_namespace, gpu_pod("one"))

    status = wait_for_pod(core_api, kube_namespace, "one", ended).status
    assert (status.phase, status.reason, status.container_statuses) == ("Failed", "Evicted", None)
    assert "low on resource" in status.message


@pytest.mark.parametrize(
    ("play", "reason"), [(ImagePullBackOff(), "ImagePullBackOff"), (NeverStarts(), "ContainerCreating")]
)
def test_a_pod_that_never_starts_waits_and_can_be_deleted(
    core_api: client.CoreV1Api,
    kube_namespace: str,
    one_node: FakeNodes,
    play: ImagePullBackOff | NeverStarts,
    reason: str,
) -> None:
    one_node.play(play)

    create(core_api, kube_namespace, gpu_pod("one"))

    pod = wait_for_pod(core_api, kube_namespace, "one", waiting_reason)
    assert (pod.status.phase, waiting_reason(pod)) == ("Pending", reason)
    core_api.delete_namespaced_pod("one", kube_namespace)
    wait_until_gone(core_api, kube_namespace, "one")


def test_a_pod_that_fits_nowhere_stays_pending_with_the_schedulers_words(
    core_api: client.CoreV1Api, kube_namespace: str, one_node: FakeNodes
) -> None:
    create(core_api, kube_namespace, gpu_pod("nine", 9))

    pod = wait_for_pod(core_api, kube_namespace, "nine", lambda pod: pod.status.conditions)
    (condition,) = pod.status.conditions
    assert (condition.type, condition.reason) == ("PodScheduled", "Unschedulable")
    assert "Insufficient nvidia.com/gpu" in condition.message


@pytest.mark.parametrize(("grace_s", "stop_s", "exit_code"), [(30, 0.0, 98), (1, 30.0, 137)])
def test_a_deleted_pod_stops_by_itself_or_is_killed_when_its_grace_is_over(
    core_api: client.CoreV1Api,
    kube_namespace: str,
    one_node: FakeNodes,
    grace_s: int,
    stop_s: float,
    exit_code: int,
) -> None:
    one_node.play(Runs(stop_code=98, stop_s=stop_s))
    create(core_api, kube_namespace, gpu_pod("one", terminationGracePeriodSeconds=grace_s))
    running = wait_for_pod(core_api, kube_namespace, "one", lambda pod: pod.status.phase == "Running")

    core_api.delete_namespaced_pod("one", kube_namespace)

    pod = wait_for_pod(core_api, kube_namespace, "one", ended, after=running)
    assert terminated(pod).exit_code == exit_code
    wait_until_gone(core_api, kube_namespace, "one")


def test_a_pod_that_matters_more_takes_the_place_of_one_that_matters_less(
    control_plane: ControlPlane, core_api: client.CoreV1Api, kube_namespace: str, one_node: FakeNodes
) -> None:
    urgent = f"urgent-{kube_namespace}"
    scheduling = client.SchedulingV1Api(core_api.api_client)
    scheduling.create_priority_class({"metadata": {"name": urgent}, "value": 1000})
    create(core_api, kube_namespace, gpu_pod("first", 8))
    wait_for_pod(core_api, kube_namespace, "first", lambda pod: pod.status.phase == "Running")

    create(core_api, kube_namespace, gpu_pod("second", 8, priorityClassName=urgent))

    wait_for_pod(core_api, kube_namespace, "second", lambda pod: pod.status.phase == "Running")
    assert names(core_api.list_namespaced_pod(kube_namespace).items) == {"second"}
    scheduling.delete_priority_class(urgent)


def test_logs_are_read_through_the_api_server(
    core_api: client.CoreV1Api, kube_namespace: str, one_node: FakeNodes
) -> None:
    one_node.play(succeeds("loss 3.1", "loss 2.9"))
    create(core_api, kube_namespace, gpu_pod("one"))
    wait_for_pod(core_api, kube_namespace, "one", ended)

    assert read_log(core_api, kube_namespace, "one") == "loss 3.1\nloss 2.9\n"
    assert read_log(core_api, kube_namespace, "one", tail_lines=1) == "loss 2.9\n"
    stamped = read_log(core_api, kube_namespace, "one", timestamps=True)
    assert [line.split(" ", 1)[1] for line in stamped.splitlines()] == ["loss 3.1", "loss 2.9"]


def test_a_function_can_be_the_container_and_its_log_is_followed_to_its_end(
    core_api: client.CoreV1Api, kube_namespace: str, one_node: FakeNodes
) -> None:
    def body(container: Container) -> End:
        container.log(f"{container.env['GREETING']} from {container.pod_ip}")
        container.stopping.wait(30.0)
        container.log("stopping")
        return End(exit_code=98, message="step 3")

    one_node.play(Performs(body=body))
    pod = gpu_pod("one")
    pod["spec"]["containers"][0]["env"] = [{"name": "GREETING", "value": "hello"}]
    create(core_api, kube_namespace, pod)
    running = wait_for_pod(core_api, kube_namespace, "one", lambda pod: pod.status.phase == "Running")

    following = core_api.read_namespaced_pod_log("one", kube_namespace, follow=True, _preload_content=False)
    lines = iter(following)
    assert next(lines).decode() == f"hello from {running.status.pod_ip}\n"
    core_api.delete_namespaced_pod("one", kube_namespace)
    assert b"".join(lines).decode() == "stopping\n"
    following.close()
    end = terminated(wait_for_pod(core_api, kube_namespace, "one", ended, after=running))
    assert (end.exit_code, end.message) == (98, "step 3")


def test_pods_of_a_lost_node_are_evicted_by_its_taint_and_let_go_when_it_is_back(
    core_api: client.CoreV1Api, kube_namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add(gpu_nodes("a100", 2, product=A100, memory_mib=81920))
    impatient = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 1}
    create(core_api, kube_namespace, gpu_pod("one", 8, tolerations=[impatient]))
    running = wait_for_pod(core_api, kube_namespace, "one", lambda pod: pod.status.phase == "Running")

    fake_nodes.lose(running.spec.node_name)

    deleted = wait_for_pod(core_api, kube_namespace, "one", lambda pod: pod.metadata.deletion_timestamp)
    assert deleted.status.phase == "Running", "nobody is there to say that it ended"
    fake_nodes.find_again(running.spec.node_name)
    wait_until_gone(core_api, kube_namespace, "one")


def test_a_cordoned_node_and_a_tainted_one_take_no_pod(
    core_api: client.CoreV1Api, kube_namespace: str, fake_nodes: FakeNodes
) -> None:
    taint = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    resources = {"nvidia.com/gpu": "8"}
    fake_nodes.add(
        [
            FakeNode(name="cordoned", resources=resources, is_cordoned=True),
            FakeNode(name="tainted", resources=resources, taints=(taint,)),
        ]
    )
    create(core_api, kube_namespace, gpu_pod("one"))

    pod = wait_for_pod(core_api, kube_namespace, "one", lambda pod: pod.status.conditions)
    message = pod.status.conditions[0].message
    assert "node(s) were unschedulable" in message
    assert "taint" in message, "newer servers do not tell which one"


def test_what_a_cluster_puts_on_every_node_is_not_played_by_the_script() -> None:
    proxy = {"metadata": {"name": "kube-proxy-x", "ownerReferences": [{"kind": "DaemonSet", "name": "kube-proxy"}]}}
    assert play_of(proxy, lambda _pod: oom_killed()) == Runs()
    assert play_of({"metadata": {"name": "one"}}, lambda _pod: oom_killed()) == oom_killed()


def test_nodes_and_pods_are_gone_with_the_test(control_plane: ControlPlane, core_api: client.CoreV1Api) -> None:
    left = {node.metadata.name for node in core_api.list_node(label_selector="frenzy.test/fake").items}
    assert left == set()


def test_a_thousand_nodes_with_eight_thousand_gpus_are_cheap(
    core_api: client.CoreV1Api, kube_namespace: str, fake_nodes: FakeNodes
) -> None:
    started_s = time.monotonic()
    fake_nodes.add(gpu_nodes("a100", 1000, product=A100, memory_mib=81920))
    created_s = time.monotonic() - started_s

    nodes = core_api.list_node(label_selector=f"nvidia.com/gpu.product={A100}").items
    assert sum(int(node.status.allocatable["nvidia.com/gpu"]) for node in nodes) == 8000
    fake_nodes.play(succeeds())
    create(core_api, kube_namespace, *(gpu_pod(f"pod-{index}", 8) for index in range(20)))
    for index in range(20):
        assert wait_for_pod(core_api, kube_namespace, f"pod-{index}", ended).status.phase == "Succeeded"
    print(f"1,000 nodes in {created_s:.1f} s", file=sys.stderr)
    assert created_s < 120
