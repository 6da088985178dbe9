"""Fixtures for tests on a real Kubernetes API server: `make test-k8s` and `make test-k8s-full`.

    control_plane      the cluster: its kubeconfig, kubectl, whether it is our own. One for the whole run.
    core_api           kubernetes.client.CoreV1Api as administrator.
    kube_namespace     name of a fresh namespace, deleted with all in it after the test.
    fake_nodes         FakeNodes: fake_nodes.add(gpu_nodes("h100", 4, product=..., memory_mib=...)), then
                       fake_nodes.play(...) says what becomes of pods on them (see plays.py); lose(), find_again()
                       and remove() a node. Until play() is called pods run until they are stopped. Nodes and their
                       pods are gone after the test. Their pods' addresses are real ones of this machine (127.x.y.z),
                       so that a `Performs` body may start real processes that meet each other there.
    kubeconfig_for     function: kubeconfig_for("name") is the path of a kubeconfig that acts as that service
                       account of kube_namespace. The account is made; the test binds its rights.
    installation       our roles of deploy/kubernetes/rbac.yaml: installation.install() puts them into kube_namespace.
    our_api            CoreV1Api as our service account with those roles: the product's calls belong here.
    bench              a launcher with our_api in kube_namespace, and two fake nodes (see bench.py).
    real_node          the name of a node with a real kubelet and 8 GPUs that are only a number (tests marked
                       `kubelet`). It is this machine: hostPath volumes are folders here.
    host_python        this machine's Python, its packages and this checkout for pods on real_node, without an image:
                       parts of a manifest, or a whole unprivileged pod with host_python.pod(name, "-c", code).

Without KUBECONFIG the tests build and start a control plane of their own: an API server, a scheduler and the
controllers, with a kubelet and containerd where a test marked `kubelet` runs. With KUBECONFIG they run on that
cluster, in namespaces of their own; tests that make nodes are skipped where that is not allowed.

What is real and what is not, on fake nodes: admission, validation, scheduling, preemption, taints, eviction
by taint, quotas, garbage collection and RBAC are real. Containers are played: there is no exec, no port-forward.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kubernetes import client, config
from tests.contract.eventually import eventually
from tests.kubernetes.access import give_gpus, make_namespace, may_make_nodes, service_account_kubeconfig
from tests.kubernetes.bench import Bench
from tests.kubernetes.control_plane import ControlPlane, NoControlPlaneError
from tests.kubernetes.control_plane import control_plane as running_control_plane
from tests.kubernetes.fake_node import FakeNode
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.host_python import HostPython, python_of_this_machine
from tests.kubernetes.installation import ACCOUNT, Installation
from tests.kubernetes.plays import Runs
from tests.kubernetes.recipe import Part

from frenzy.core.values.run_files import ExitCode


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    needs_kubelet = any(item.get_closest_marker("kubelet") for item in request.session.items)
    try:
        with running_control_plane(Part.FULL if needs_kubelet else Part.API) as cluster:
            yield cluster
    except NoControlPlaneError as error:
        # Where the tests were asked for by a server that builds, nothing tested is no success.
        if os.environ.get("FRENZY_TEST_KUBERNETES") == "required":
            raise
        pytest.skip(f"no Kubernetes: {error}")


@pytest.fixture(scope="session")
def core_api(control_plane: ControlPlane) -> Iterator[client.CoreV1Api]:
    with control_plane.api_client() as api:
        yield client.CoreV1Api(api)


@pytest.fixture
def kube_namespace(core_api: client.CoreV1Api) -> Iterator[str]:
    name = f"frenzy-test-{uuid4().hex[:8]}"
    make_namespace(core_api, name)
    yield name
    core_api.delete_namespace(name)


@pytest.fixture
def fake_nodes(control_plane: ControlPlane) -> Iterator[FakeNodes]:
    if not control_plane.is_own and not may_make_nodes(control_plane):
        pytest.skip("the user of KUBECONFIG may not create nodes in this cluster")
    nodes = FakeNodes(
        str(control_plane.kubeconfig),
        address=control_plane.node_address,
        serving=control_plane.serving(),
        # Our own node controller is patient, unless it watches over a real node too.
        sends_heartbeats=not control_plane.is_own or control_plane.node is not None,
    )
    yield nodes
    nodes.stop()


@pytest.fixture
def kubeconfig_for(control_plane: ControlPlane, kube_namespace: str, tmp_path: Path) -> Callable[[str], Path]:
    return lambda account: service_account_kubeconfig(control_plane, kube_namespace, account, tmp_path)


@pytest.fixture
def installation(core_api: client.CoreV1Api, kube_namespace: str) -> Iterator[Installation]:
    made = Installation(core_api.api_client, kube_namespace)
    yield made
    made.remove()


@pytest.fixture
def our_api(installation: Installation, kubeconfig_for: Callable[[str], Path]) -> Iterator[client.CoreV1Api]:
    installation.install()
    with config.new_client_from_config(str(kubeconfig_for(ACCOUNT))) as api:
        yield client.CoreV1Api(api)
        api.rest_client.pool_manager.clear()


@pytest.fixture
def real_node(control_plane: ControlPlane, core_api: client.CoreV1Api) -> str:
    if control_plane.node is None:
        pytest.skip("this cluster's nodes are not this machine: its files cannot be mounted into pods")
    give_gpus(core_api, control_plane.node)
    return control_plane.node


@pytest.fixture(scope="session")
def host_python() -> HostPython:
    return python_of_this_machine()


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
    made.mirror.close()
