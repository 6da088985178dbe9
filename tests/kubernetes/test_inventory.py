"""The inventory against a real API server, as the service account that `deploy/kubernetes/rbac.yaml` makes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from tests.contract.eventually import eventually
from tests.kubernetes.fake_node import FakeNode, gpu_nodes
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.installation import Installation
from tests.kubernetes.plays import Runs
from tests.kubernetes.pods import create, gpu_pod, wait_for_pod
from tests.unit.adapters.k8s.pod_examples import A100, node, spec

from frenzy.adapters.k8s.inventory.kubernetes_inventory import KubernetesInventory
from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.pod_rules import PodRules, RunDirectory
from frenzy.core.values.cluster import Node, NodeState

PRODUCT = "NVIDIA-A100-SXM4-80GB"
OTHERS = "frenzy-pods-of-others"


@pytest.fixture
def rules(kube_namespace: str) -> PodRules:
    runs = RunDirectory(host_path="/var/lib/frenzy/runs", mount_path="/var/lib/frenzy/runs")
    return PodRules(image="trainer:1", namespace=kube_namespace, run_directory=runs)


@pytest.fixture
def inventory(kubeconfig_for: Callable[[str], Path], rules: PodRules, tmp_path: Path) -> Iterator[KubernetesInventory]:
    """It acts as our service account, which has the rights that the test installs."""
    kubeconfig = str(kubeconfig_for("frenzy"))
    types = tmp_path / "types.yaml"
    types.write_text("gpu_types: {a100-80: {price_per_hour: 2}}\n", encoding="utf-8")
    made = KubernetesInventory(
        lambda: client.CoreV1Api(config.new_client_from_config(kubeconfig)), rules, cluster_file=types
    )
    yield made
    made.close()


def node_called(inventory: KubernetesInventory, name: str) -> Node | None:
    return inventory.cluster().nodes_by_name.get(name)


def usable(inventory: KubernetesInventory, name: str) -> int:
    found = node_called(inventory, name)
    return 0 if found is None else found.num_usable


def test_nodes_come_drain_fall_silent_and_go(
    installation: Installation, inventory: KubernetesInventory, fake_nodes: FakeNodes, core_api: client.CoreV1Api
) -> None:
    installation.install()
    fake_nodes.add(gpu_nodes("inv-a", 2, product=PRODUCT, memory_mib=81920))
    assert {"inv-a-0", "inv-a-1"} <= inventory.cluster().nodes_by_name.keys()
    assert inventory.cluster().types_by_name["a100-80"].price_per_hour == 2
    mixed = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}
    fake_nodes.add([FakeNode(name="inv-t4", labels=mixed, resources={"nvidia.com/gpu": "1"})])
    eventually(lambda: node_called(inventory, "inv-t4") is not None)
    core_api.patch_node("inv-a-0", {"spec": {"unschedulable": True}})
    eventually(lambda: inventory.cluster().nodes_by_name["inv-a-0"].state is NodeState.DRAINING)
    core_api.delete_node("inv-t4")
    eventually(lambda: node_called(inventory, "inv-t4") is None)


def test_gpus_of_others_are_counted_off_until_their_pods_end_and_ours_are_not(
    installation: Installation,
    inventory: KubernetesInventory,
    fake_nodes: FakeNodes,
    core_api: client.CoreV1Api,
    kube_namespace: str,
    rules: PodRules,
) -> None:
    installation.install()
    fake_nodes.add(gpu_nodes("inv-b", 1, product=PRODUCT, memory_mib=81920))
    fake_nodes.play(Runs())
    assert usable(inventory, "inv-b-0") == 8
    hostname = {"kubernetes.io/hostname": "inv-b-0"}
    create(core_api, kube_namespace, gpu_pod("theirs", 3, nodeSelector=hostname))
    eventually(lambda: usable(inventory, "inv-b-0") == 5)
    (ours,) = pods_of(spec(A100, node("inv-b-0", A100, 5), secrets={}), rules)
    core_api.create_namespaced_pod(kube_namespace, ours)
    wait_for_pod(core_api, kube_namespace, ours["metadata"]["name"], lambda each: each.status.phase == "Running")
    core_api.delete_namespaced_pod("theirs", kube_namespace)
    eventually(lambda: usable(inventory, "inv-b-0") == 8)


def test_without_the_right_to_list_others_pods_it_works_and_says_what_it_cannot_see(
    installation: Installation,
    inventory: KubernetesInventory,
    fake_nodes: FakeNodes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    installation.install(without=(OTHERS,))
    fake_nodes.add(gpu_nodes("inv-c", 1, product=PRODUCT, memory_mib=81920))
    with caplog.at_level(logging.WARNING):
        assert usable(inventory, "inv-c-0") == 8
    assert OTHERS in caplog.text


def test_the_account_may_do_nothing_else(
    installation: Installation, kubeconfig_for: Callable[[str], Path], kube_namespace: str
) -> None:
    installation.install()
    with config.new_client_from_config(str(kubeconfig_for("frenzy"))) as api:
        core = client.CoreV1Api(api)
        core.list_namespaced_pod(kube_namespace)
        refused: tuple[Callable[[], Any], ...] = (
            lambda: core.list_namespaced_secret(kube_namespace),
            lambda: core.list_namespaced_config_map(kube_namespace),
            lambda: core.create_namespaced_pod("default", {"metadata": {"name": "x"}, "spec": {"containers": []}}),
            lambda: core.delete_node("nowhere"),
            lambda: core.patch_namespaced_pod("x", kube_namespace, {}),
            lambda: core.delete_collection_namespaced_pod(kube_namespace),
        )
        for each in refused:
            with pytest.raises(client.ApiException) as told:
                each()
            assert told.value.status == 403


def test_hundreds_of_nodes_come_in_pages_and_each_change_alone(
    installation: Installation, inventory: KubernetesInventory, fake_nodes: FakeNodes, core_api: client.CoreV1Api
) -> None:
    installation.install()
    fake_nodes.add(gpu_nodes("inv-many", 600, product=PRODUCT, memory_mib=81920))
    cluster = inventory.cluster()
    assert sum(each.num_gpus for each in cluster.nodes if each.name.startswith("inv-many-")) == 4800
    core_api.patch_node("inv-many-7", {"spec": {"unschedulable": True}})
    eventually(lambda: inventory.cluster().nodes_by_name["inv-many-7"].state is NodeState.DRAINING)
