"""The whole DAG through a real Airflow whose launch task is a KubernetesPodOperator, on nodes that play trainings.

Airflow acts as the service account of `deploy/kubernetes/rbac.yaml`, and knows of the nodes by their labels.
Every test ends with no pod and no lease.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from kubernetes import client
from tests.e2e.walker import CLUSTER, Walker, job_text, write_cluster, write_corpus
from tests.embedded_stack import Stack
from tests.kubernetes.access import make_namespace, may_make_nodes, service_account_kubeconfig
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fake_node import FakeNode
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.installation import Installation
from tests.kubernetes.played_trainer import WAIT, played_trainer
from tests.kubernetes.plays import Performs

from frenzy.adapters.k8s import labels
from frenzy.cli.embedded.airflow_env import CONNECTION_VARIABLE
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode

LAUNCH = "train.launch"
SOON_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the pods of this module's Airflow are."""

    core: client.CoreV1Api
    namespace: str
    nodes: FakeNodes
    runs: Path

    def pods(self) -> list[Any]:
        found: list[Any] = self.core.list_namespaced_pod(self.namespace).items
        return found


@pytest.fixture(scope="module")
def place(
    control_plane: ControlPlane, core_api: client.CoreV1Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    if not control_plane.is_own and not may_make_nodes(control_plane):
        pytest.skip("the user of KUBECONFIG may not create nodes in this cluster")
    namespace = f"frenzy-walk-{uuid4().hex[:8]}"
    make_namespace(core_api, namespace)
    nodes = FakeNodes(
        str(control_plane.kubeconfig),
        address=control_plane.node_address,
        serving=control_plane.serving(),
        sends_heartbeats=not control_plane.is_own or control_plane.node is not None,
    )
    nodes.add(gpu_node(each) for each in CLUSTER["nodes"])
    nodes.play(Performs(body=played_trainer))
    rights = Installation(core_api.api_client, namespace)
    rights.install()
    yield Place(core=core_api, namespace=namespace, nodes=nodes, runs=tmp_path_factory.mktemp("runs"))
    rights.remove()
    nodes.stop()
    core_api.delete_namespace(namespace)


def gpu_node(node: dict[str, Any]) -> FakeNode:
    """The test cluster's node as an administrator would label it: virtual GPUs are in no driver's labels."""
    given = {labels.GPU_TYPE: node["gpu_type"], labels.GPU_COUNT: str(node["gpus"])}
    return FakeNode(name=node["name"], labels=given)


@pytest.fixture(scope="module")
def walker(
    place: Place,
    control_plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
    stack_settings: Callable[[str], dict[str, str]],
) -> Iterator[Walker]:
    files = tmp_path_factory.mktemp("files")
    leave_soon = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "toleration_seconds": 1,
    }
    rules = {
        "image": "example.test/trainer:1",
        "namespace": place.namespace,
        "run_directory": {"host_path": str(place.runs), "mount_path": str(place.runs)},
        "tolerations": [leave_soon],
    }
    (files / "pods.yaml").write_text(yaml.safe_dump(rules))
    extras = {
        "FRENZY_CLUSTER": str(write_cluster(files)),
        "FRENZY_LAUNCHER": "kubernetes",
        "FRENZY_PODS": str(files / "pods.yaml"),
        "FRENZY_RUN_ROOT": str(place.runs),
        "FRENZY_ELASTIC": "off",
        "FRENZY_LEASE_S": 15,
        "FRENZY_POLL_S": 0.5,
        "FRENZY_STOP_GRACE_S": 5,
    }
    # The Connection alone says where workers run; test_real_walk says it by the environment.
    env = {
        CONNECTION_VARIABLE: json.dumps({"conn_type": "http", "extra": extras}),
        "KUBECONFIG": str(service_account_kubeconfig(control_plane, place.namespace, "frenzy", files)),
    }
    env |= stack_settings("postgresql")
    with Stack.running(tmp_path_factory.mktemp("stack"), env=env) as stack:
        user = Walker(stack, write_corpus(files))
        yield user
        user.http.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(walker: Walker, place: Place) -> Iterator[None]:
    yield
    walker.eventually("no pod", lambda: not place.pods(), SOON_S)
    walker.eventually("no lease", lambda: walker.num_free() == walker.num_gpus(), SOON_S)


def start(walker: Walker, name: str, ends: str, **sections: Any) -> tuple[str, str]:
    return walker.start(name, env={"ENDS": ends}, **sections)


def running(walker: Walker, place: Place, run: tuple[str, str], attempt: int = 1) -> RunView:
    """The run with its attempt's workers in mid-training and its launch task waiting."""
    view = walker.wait_for_step(*run, 1, attempt=attempt)
    walker.eventually("its launch task waits", lambda: walker.task(*run, LAUNCH)["state"] == "deferred")
    assert any(pod.status.phase == "Running" for pod in place.pods())
    return view


def outcomes(view: RunView) -> list[ReasonCode]:
    return [each.outcome.code for each in view.attempts if each.outcome is not None]


def test_a_job_trains_in_pods_and_its_launch_task_is_a_kubernetes_pod_operator(walker: Walker) -> None:
    run = start(walker, "in-pods", "0")
    view = walker.succeed(*run)
    assert outcomes(view) == [ReasonCode.COMPLETED]
    assert (view.attempts[0].launcher_ref or "").startswith("kubernetes:")
    task = walker.task(*run, LAUNCH)
    assert (task["state"], task["operator"]) == ("success", "PodLaunchOperator")
    assert task["pool"] == f"gpu_{view.attempts[0].plan.gpu_type}"


def test_out_of_memory_in_a_pod_moves_the_run_to_another_plan(walker: Walker) -> None:
    view = walker.succeed(*start(walker, "oom-in-pod", "97,0", training={"max_steps": 20}))
    assert outcomes(view) == [ReasonCode.CUDA_OUT_OF_MEMORY, ReasonCode.COMPLETED]
    first, second = view.attempts
    assert second.plan.shape != first.plan.shape
    assert second.result is not None
    assert second.result.resumed_from_step == 3
    assert view.run.num_reschedules == 1


def test_cancelling_leaves_no_pod_and_no_lease(walker: Walker, place: Place) -> None:
    run = start(walker, "cancelled-in-pod", WAIT)
    running(walker, place, run)
    walker.airflow("PATCH", f"/dags/{run[0]}/dagRuns/{run[1]}", {"state": "failed"})
    walker.wait_for_state(*run, JobState.CANCELLED)


def test_a_launch_task_marked_failed_ends_its_pods(walker: Walker, place: Place) -> None:
    run = start(walker, "marked-failed", WAIT)
    running(walker, place, run)
    walker.airflow("PATCH", f"/dags/{run[0]}/dagRuns/{run[1]}/taskInstances/{LAUNCH}", {"new_state": "failed"})
    walker.wait_for_state(*run, JobState.CANCELLED)


# A user's own DAG, which changes its launch task.
LIMITED = """
from datetime import timedelta
from functools import partial

from airflow.sdk import DAG
from frenzy.airflow.operators.task_group import frenzy_training

with DAG("{name}", schedule=None):
    launch = frenzy_training({spec!r}).children["train.launch"]
    {limit}
"""


def start_limited(walker: Walker, name: str, ends: str, limit: str) -> tuple[str, str]:
    """A run of a DAG whose launch task has a time limit."""
    spec = spec_of(walker, name)
    spec.write_text(job_text(name, walker.corpus, env={"ENDS": ends}, training={"max_steps": 20}))
    write_dag(walker, name, limit)
    walker.eventually(f"{name} visible", lambda: walker.http.get(f"/api/v2/dags/{name}").status_code == 200)
    return name, walker.trigger(name)


def spec_of(walker: Walker, name: str) -> Path:
    return walker.corpus.with_name(f"{name}.yaml")


def write_dag(walker: Walker, name: str, limit: str = "") -> None:
    """The DAG as it is from the next attempt on: without a limit, that one has all its time."""
    dag = walker.stack.settings.jobs_folder / f"{name}.py"
    dag.write_text(LIMITED.format(name=name, spec=str(spec_of(walker, name)), limit=limit))


def test_a_launch_task_that_waits_beyond_its_time_limit_ends_its_pods_and_the_run_goes_on(walker: Walker) -> None:
    limit = "launch.defer = partial(launch.defer, timeout=timedelta(seconds=40))"
    run = start_limited(walker, "waits-too-long", f"{WAIT},0", limit)
    walker.eventually("its first attempt's end", lambda: _first_has_ended(walker, run))
    write_dag(walker, run[0])
    view = walker.wait_for_state(*run, JobState.SUCCEEDED)
    assert outcomes(view) == [ReasonCode.CHECKPOINTED_ON_REQUEST, ReasonCode.COMPLETED]
    assert view.attempts[1].result is not None
    assert view.attempts[1].result.resumed_from_step == 2


def _first_has_ended(walker: Walker, run: tuple[str, str]) -> bool:
    view = walker.view(*run)
    return view is not None and bool(view.attempts) and view.attempts[0].outcome is not None


@contextmanager
def webhook_away(core: client.CoreV1Api, job: str) -> Iterator[None]:
    """Meanwhile nobody answers whether pods of ``job`` may be made."""
    admission = client.AdmissionregistrationV1Api(core.api_client)
    webhook = {
        "name": "away.frenzy.dev",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "objectSelector": {"matchLabels": {labels.JOB: job}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    name = f"{job}-{uuid4().hex[:8]}"
    admission.create_validating_webhook_configuration({"metadata": {"name": name}, "webhooks": [webhook]})
    try:
        yield
    finally:
        admission.delete_validating_webhook_configuration(name)


def test_a_launch_task_whose_time_is_up_while_it_makes_its_pods_leaves_nothing_and_the_run_goes_on(
    walker: Walker, place: Place
) -> None:
    limit = "launch.execution_timeout = timedelta(seconds=20)"
    with webhook_away(place.core, "makes-too-long"):
        run = start_limited(walker, "makes-too-long", "0", limit)
        walker.eventually("its launch task failed", lambda: walker.task(*run, LAUNCH)["state"] == "failed")
        write_dag(walker, run[0])
    view = walker.wait_for_state(*run, JobState.SUCCEEDED)
    assert outcomes(view) == [ReasonCode.WORKERS_LOST, ReasonCode.COMPLETED]


def test_a_cleared_launch_task_saves_a_checkpoint_and_the_run_goes_on_from_it(walker: Walker, place: Place) -> None:
    run = start(walker, "cleared", f"{WAIT},0", training={"max_steps": 20})
    running(walker, place, run)
    body = {"dry_run": False, "dag_run_id": run[1], "task_ids": [LAUNCH], "only_failed": False}
    walker.airflow("POST", f"/dags/{run[0]}/clearTaskInstances", body)
    view = walker.succeed(*run)
    assert len(view.attempts) == 2
    assert view.attempts[1].result is not None
    assert view.attempts[1].result.resumed_from_step == 2


def test_a_run_in_pods_outlives_the_death_of_the_triggerer(walker: Walker, place: Place) -> None:
    run = start(walker, "outlives", f"{WAIT},0", training={"max_steps": 20})
    view = running(walker, place, run)
    walker.stack.kill("triggerer")
    pods = {pod.metadata.uid for pod in place.pods()}
    walker.stack.restart("triggerer")
    walker.eventually("the lease renewed", lambda: _heard_again(walker, run, view))
    assert {pod.metadata.uid for pod in place.pods()} == pods, "the workers never noticed"
    for pod in place.pods():  # as a drain would
        place.core.delete_namespaced_pod(pod.metadata.name, place.namespace)
    view = walker.succeed(*run)
    assert outcomes(view) == [ReasonCode.POD_DELETED, ReasonCode.COMPLETED]
    assert view.run.num_reschedules == 0, "not the job's fault"


def _heard_again(walker: Walker, run: tuple[str, str], before: RunView) -> bool:
    view = walker.view(*run)
    assert view is not None and view.lease is not None and before.lease is not None
    return view.lease.heartbeat_s > before.lease.heartbeat_s + 5.0


def test_a_quota_keeps_a_run_queued_with_its_reason_until_there_is_room(walker: Walker, place: Place) -> None:
    quota = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}}
    place.core.create_namespaced_resource_quota(place.namespace, quota)
    walker.eventually("a quota", lambda: place.core.read_namespaced_resource_quota("full", place.namespace).status.hard)
    run = start(walker, "under-quota", "0")

    def held() -> bool:
        view = walker.view(*run)
        hold = view.queue_entry.hold if view is not None and view.queue_entry is not None else None
        return hold is not None and hold.code is ReasonCode.QUOTA_EXCEEDED

    walker.eventually("queued with the quota's reason", held)
    place.core.delete_namespaced_resource_quota("full", place.namespace)
    view = walker.succeed(*run)
    assert view.run.num_reschedules == 0
    assert outcomes(view)[-1] is ReasonCode.COMPLETED
    assert set(outcomes(view)[:-1]) == {ReasonCode.QUOTA_EXCEEDED}


def test_a_run_whose_node_is_lost_goes_on_elsewhere_from_its_last_checkpoint(walker: Walker, place: Place) -> None:
    run = start(walker, "node-lost", f"{WAIT},0", training={"max_steps": 20})
    view = running(walker, place, run)
    (lost,) = {each.node for each in view.attempts[0].placement.allocations}
    place.nodes.lose(lost)
    place.nodes.remove(lost)
    view = walker.succeed(*run)
    assert outcomes(view) == [ReasonCode.NODE_LOST, ReasonCode.COMPLETED]
    assert view.attempts[0].lost_nodes == (lost,)
    assert lost not in {each.node for each in view.attempts[1].placement.allocations}
    assert view.attempts[1].result is not None
    assert view.attempts[1].result.resumed_from_step is not None, "not from the start"
    assert view.run.num_reschedules == 0, "not the job's fault"
