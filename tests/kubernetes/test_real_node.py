"""Pods on a real kubelet: they run this machine's Python without an image, reach each other, and really die."""

from __future__ import annotations

import pytest
from kubernetes import client
from tests.kubernetes.host_python import HostPython
from tests.kubernetes.pods import create, ended, read_log, terminated, wait_for_pod, wait_until_gone

pytestmark = pytest.mark.kubelet

_ALL_REDUCE = """
import torch, torch.distributed as distributed
distributed.init_process_group("gloo")
value = torch.ones(1) * (distributed.get_rank() + 1)
distributed.all_reduce(value)
print("sum", value.item(), "of", distributed.get_world_size())
distributed.destroy_process_group()
"""


def test_a_pod_imports_deepspeed_from_the_hosts_environment_as_an_unprivileged_user(
    core_api: client.CoreV1Api, kube_namespace: str, real_node: str, host_python: HostPython
) -> None:
    code = "import os, deepspeed, frenzy; print(deepspeed.__version__, os.getuid(), frenzy.__name__)"
    create(core_api, kube_namespace, host_python.pod("one", "-c", code))

    pod = wait_for_pod(core_api, kube_namespace, "one", ended)

    log = read_log(core_api, kube_namespace, "one")
    assert pod.status.phase == "Succeeded", log
    assert pod.spec.node_name == real_node
    assert log.splitlines()[-1].split()[1:] == ["65534", "frenzy"]


def test_two_pods_add_up_over_their_addresses(
    core_api: client.CoreV1Api, kube_namespace: str, real_node: str, host_python: HostPython
) -> None:
    def rank(index: int, address: str) -> dict[str, object]:
        env = {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": "29500"}
        return host_python.pod(f"rank-{index}", "-c", _ALL_REDUCE, env=env)

    create(core_api, kube_namespace, rank(0, "0.0.0.0"))
    first = wait_for_pod(core_api, kube_namespace, "rank-0", lambda pod: pod.status.pod_ip)
    create(core_api, kube_namespace, rank(1, first.status.pod_ip))

    for name in ("rank-0", "rank-1"):
        pod = wait_for_pod(core_api, kube_namespace, name, ended)
        log = read_log(core_api, kube_namespace, name)
        assert (pod.status.phase, log.splitlines()[-1:]) == ("Succeeded", ["sum 3.0 of 2"]), log


def test_an_exit_code_and_a_termination_message_are_as_fake_nodes_play_them(
    core_api: client.CoreV1Api, kube_namespace: str, real_node: str, host_python: HostPython
) -> None:
    code = "import sys; open('/dev/termination-log', 'w').write('{\"step\": 7}'); sys.exit(97)"
    create(core_api, kube_namespace, host_python.pod("one", "-c", code))

    end = terminated(wait_for_pod(core_api, kube_namespace, "one", ended))
    assert (end.exit_code, end.reason, end.message) == (97, "Error", '{"step": 7}')


def test_a_container_over_its_memory_is_killed_by_the_kernel(
    core_api: client.CoreV1Api, kube_namespace: str, real_node: str, host_python: HostPython
) -> None:
    pod = host_python.pod("one", "-c", "held = bytearray(1 << 30)")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "128Mi"}}
    create(core_api, kube_namespace, pod)

    end = terminated(wait_for_pod(core_api, kube_namespace, "one", ended))
    assert (end.exit_code, end.reason) == (137, "OOMKilled")


def test_a_deleted_pod_is_asked_to_stop_and_may_end_by_itself(
    core_api: client.CoreV1Api, kube_namespace: str, real_node: str, host_python: HostPython
) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(98))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    create(core_api, kube_namespace, host_python.pod("one", "-c", code))
    running = wait_for_pod(core_api, kube_namespace, "one", lambda pod: pod.status.phase == "Running")
    following = core_api.read_namespaced_pod_log("one", kube_namespace, follow=True, _preload_content=False)
    assert next(iter(following)).decode() == "ready\n"

    core_api.delete_namespaced_pod("one", kube_namespace)

    ended = wait_for_pod(core_api, kube_namespace, "one", terminated, after=running)
    assert terminated(ended).exit_code == 98
    wait_until_gone(core_api, kube_namespace, "one")
    following.close()


def test_a_read_only_root_holds(
    core_api: client.CoreV1Api, kube_namespace: str, real_node: str, host_python: HostPython
) -> None:
    create(core_api, kube_namespace, host_python.pod("one", "-c", "open('/new', 'w')"))

    wait_for_pod(core_api, kube_namespace, "one", ended)
    assert "Read-only file system" in read_log(core_api, kube_namespace, "one")
