"""The whole DAG through a real Airflow and KubernetesPodOperator, with pods that really train on a real kubelet.

The one machine plays the nodes of two GPU types: it is labelled as a node of the first itself, and the other nodes
are those of autoscaled groups whose labels it has, so that the scheduler puts their pods on it too. The GPUs are
virtual; pods, their network, DeepSpeed, memory and the moves are not. Every test ends with no pod and no lease.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from kubernetes import client
from tests.e2e.growing import check_moves, growing
from tests.e2e.walker import RECONCILE, Walker, write_cluster, write_corpus
from tests.embedded_stack import Stack
from tests.kubernetes.access import make_namespace, service_account_kubeconfig, virtual_gpus
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.host_python import USER, HostPython
from tests.kubernetes.installation import ACCOUNT, Installation
from tests.scenarios.checks import loss_equals_control
from tests.scenarios.control import ControlRun
from tests.scenarios.swap import Watched

from frenzy.adapters.k8s import labels
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import MemoryView
from frenzy.core.values.errors import ReasonCode
from frenzy.settings import CHECKOUT

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(900)]

LAUNCH = "train.launch"
SOON_S = 90.0
CONTROL_S = 300.0
# Of a pod's /tmp: what a test writes to have the kubelet evict the pod is more than that.
SCRATCH_MIB = 64
# Two GPUs of "twin", each on a node of its own, are faster than the one of "large".
TYPES: dict[str, Any] = {
    "twin": {"kind": "virtual", "memory": "72 MiB", "flops": "2 GFLOPS", "price_per_hour": 0.1},
    "large": {"kind": "virtual", "memory": "384 MiB", "flops": "3 GFLOPS", "price_per_hour": 0.4},
}
JOB: Mapping[str, Any] = {"constraints": {"gpu_types": list(TYPES)}, "checkpoint": {"every_steps": 4, "keep": 2}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the pods of this module's Airflow are. texts: a folder that they may read; files: Airflow's."""

    core: client.CoreV1Api
    namespace: str
    node: str
    runs: Path
    texts: Path
    files: Path

    def pods(self, attempt: int | None = None) -> list[Any]:
        selector = labels.OURS if attempt is None else f"{labels.OURS},{labels.ATTEMPT}={attempt}"
        found: list[Any] = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return found


@pytest.fixture(scope="module")
def place(
    control_plane: ControlPlane, core_api: client.CoreV1Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    if control_plane.node is None:
        pytest.skip("this cluster's nodes are not this machine: its files cannot be mounted into pods")
    namespace = f"frenzy-walk-{uuid4().hex[:8]}"
    make_namespace(core_api, namespace)
    rights = Installation(core_api.api_client, namespace)
    rights.install()
    runs, texts = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("texts")
    runs.chmod(0o777)
    texts.chmod(0o755)
    with virtual_gpus(core_api, control_plane.node, "twin", count=1):
        yield Place(
            core=core_api,
            namespace=namespace,
            node=control_plane.node,
            runs=runs,
            texts=texts,
            files=tmp_path_factory.mktemp("files"),
        )
    rights.remove()
    core_api.delete_namespace(namespace)


def cluster_with(place: Place, **to_come: int) -> dict[str, Any]:
    """``to_come``: by type, nodes that its group may have beside the machine, which counts as one of each group."""
    common = {"gpus": 1, "cpus": 1, "host_memory": "6 GiB", "labels": {labels.HOSTNAME: place.node}}
    groups = [
        {"name": f"{name}-group", "gpu_type": name, "max_nodes": 1 + number, **common}
        for name, number in to_come.items()
    ]
    return {"gpu_types": TYPES, "nodes": [], "autoscaled": groups}


def _pod_rules(place: Place, host_python: HostPython) -> dict[str, Any]:
    """The host's Python in the product's own pods, whose home and scratch space are the pods'."""
    sources = {each["name"]: each["hostPath"]["path"] for each in host_python.volumes if "hostPath" in each}
    places = {each["name"]: each["mountPath"] for each in host_python.mounts}
    volumes = [(name, source, places[name]) for name, source in sources.items()]
    volumes.append(("texts", str(place.texts), str(place.texts)))
    return {
        "image": host_python.image,
        "namespace": place.namespace,
        "python": [host_python.python],
        "env": {each["name"]: each["value"] for each in host_python.env if each["name"] != "HOME"},
        "volumes": [{"name": name, "host_path": source, "mount_path": path} for name, source, path in volumes],
        "run_directory": {"host_path": str(place.runs), "mount_path": str(place.runs)},
        "run_as_user": USER,
        "run_as_group": USER,
        "fs_group": None,
        "cpus_per_gpu": 0.1,
        "cpu_limit_per_gpu": 2,
        "extra_host_memory_per_gpu": "2 GiB",
        "shm_per_gpu": "256 MiB",
        "ephemeral_storage": f"{SCRATCH_MIB} MiB",
    }


@pytest.fixture(scope="module")
def walker(
    place: Place,
    control_plane: ControlPlane,
    host_python: HostPython,
    tmp_path_factory: pytest.TempPathFactory,
    stack_settings: Callable[[str], dict[str, str]],
) -> Iterator[Walker]:
    files = place.files
    (files / "pods.yaml").write_text(yaml.safe_dump(_pod_rules(place, host_python)))
    env = {
        "FRENZY_CLUSTER": str(write_cluster(files, cluster_with(place, twin=1, large=1))),
        "FRENZY_LAUNCHER": "kubernetes",
        "FRENZY_PODS": str(files / "pods.yaml"),
        "FRENZY_RUN_ROOT": str(place.runs),
        "FRENZY_ELASTIC": "off",
        "FRENZY_LEASE_S": "15",
        "FRENZY_POLL_S": "0.5",
        "FRENZY_STOP_GRACE_S": "10",
        "KUBECONFIG": str(service_account_kubeconfig(control_plane, place.namespace, ACCOUNT, files)),
        **stack_settings("postgresql"),
    }
    with _everyone_may_write(), Stack.running(tmp_path_factory.mktemp("stack"), env=env) as stack:
        user = Walker(stack, write_corpus(place.texts))
        yield user
        user.http.close()


@contextmanager
def _everyone_may_write() -> Iterator[None]:
    """As a volume with fsGroup would let them: here Airflow is root, and the pods are not."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture(autouse=True)
def _nothing_is_left(walker: Walker, place: Place) -> Iterator[None]:
    write_cluster(place.files, cluster_with(place, twin=1, large=1))
    yield
    walker.eventually("no pod", lambda: not place.pods(), SOON_S)
    walker.eventually("no lease", lambda: walker.num_free() == walker.num_gpus(), SOON_S)


def two_pods(walker: Walker, place: Place) -> list[Any]:
    """The pods of the first attempt by node rank, once both run: on the one machine, each with its own address."""

    def look() -> list[Any] | None:
        found = place.pods(attempt=1)
        return found if [pod.status.phase for pod in found] == ["Running"] * 2 else None

    pods = sorted(walker.eventually("two pods", look), key=lambda pod: str(pod.metadata.labels[labels.NODE_RANK]))
    assert [pod.spec.node_name for pod in pods] == [place.node] * 2
    assert len({pod.status.pod_ip for pod in pods}) == 2
    return pods


def num_pods(view: RunView) -> list[int]:
    return [len(each.placement.allocations) for each in view.attempts]


def outcomes(view: RunView) -> list[ReasonCode]:
    return [each.outcome.code for each in view.attempts if each.outcome is not None]


def check_losses(walker: Walker, view: RunView, folder: Path) -> None:
    """Every step's loss against the same job's, trained again without interruption by plain processes."""
    control = ControlRun(folder, {**os.environ, "PYTHONPATH": str(CHECKOUT / "plugins")})
    try:
        control.start(view.run.job, view.attempts[0].plan)
        result = control.wait(CONTROL_S)
        assert result is not None and result.exit_code == 0, control.log_tail()
    finally:
        control.stop()
    memory = walker.frenzy("GET", f"/runs/{view.run.run_key}/memory", MemoryView)
    watched = Watched(view=view, memory=memory, control_losses=control.losses(), control_result=result)
    check = loss_equals_control(watched)
    assert check.passed, check.evidence


def test_memory_that_grows_in_two_pods_is_forecast_and_the_run_ends_in_one_with_the_losses_of_no_interruption(
    walker: Walker, place: Place, tmp_path: Path
) -> None:
    run = walker.start("pressed-in-pods", training=growing(60, max_steps=60), **JOB)
    two_pods(walker, place)
    view = walker.succeed(*run)
    check_moves(view)
    assert outcomes(view)[0] is ReasonCode.MEMORY_PRESSURE_FORECAST, outcomes(view)
    assert outcomes(view)[-1] is ReasonCode.COMPLETED
    assert (num_pods(view)[0], num_pods(view)[-1]) == (2, 1), [each.plan.plan_id for each in view.attempts]
    assert view.attempts[0].result is not None
    assert view.attempts[0].result.exit_code == 98
    assert walker.task(*run, LAUNCH)["operator"] == "PodLaunchOperator"
    check_losses(walker, view, tmp_path)


def test_a_run_of_which_the_kubelet_evicts_one_pod_goes_on_in_another_from_its_last_checkpoint(
    walker: Walker, place: Place, control_plane: ControlPlane, tmp_path: Path
) -> None:
    run = walker.start("evicted-in-pods", training={"global_batch_size": 16, "max_steps": 60}, **JOB)
    _, second = two_pods(walker, place)
    grow_no_more(walker, place, tmp_path)
    walker.wait_for_step(*run, 9)
    fill_scratch_space(control_plane, second)
    view = walker.succeed(*run)
    assert outcomes(view) == [ReasonCode.POD_EVICTED, ReasonCode.COMPLETED]
    assert num_pods(view) == [2, 1]
    assert view.attempts[0].lost_nodes == (view.attempts[0].placement.allocations[1].node,)
    assert view.attempts[1].result is not None
    assert (view.attempts[1].result.resumed_from_step or 0) >= 8, "from the last checkpoint, not from the start"
    assert view.run.num_reschedules == 0, "not the job's fault"
    check_losses(walker, view, tmp_path)


def grow_no_more(walker: Walker, place: Place, folder: Path) -> None:
    """From now on no further node of the type comes: a run that loses one of two there has one left.

    The ledger, which may know of a third since the pods run, hears of it by the next reconciliation.
    """
    write_cluster(folder, cluster_with(place, twin=0, large=1)).replace(place.files / "cluster.yaml")
    run = walker.trigger(RECONCILE)
    walker.eventually("a reconciliation", lambda: walker.dag_run_state(RECONCILE, run) == "success")


def fill_scratch_space(control_plane: ControlPlane, pod: Any) -> None:
    """Write more into the pod's /tmp than it may hold, by a process in the pod."""
    inside = ("dd", "if=/dev/zero", "of=/tmp/filled", "bs=1M", f"count={2 * SCRATCH_MIB}")
    assert control_plane.kubectl is not None
    subprocess.run(
        (
            control_plane.kubectl,
            f"--kubeconfig={control_plane.kubeconfig}",
            f"--namespace={pod.metadata.namespace}",
            *("exec", pod.metadata.name, f"--container={labels.CONTAINER}", "--"),
            *inside,
        ),
        check=True,
        capture_output=True,
        timeout=SOON_S,
    )
