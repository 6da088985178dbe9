"""The whole DAG with a pod for each task: Airflow's KubernetesExecutor, under the roles of `deploy/kubernetes/`.

Airflow and its task pods are in one namespace, the trainers' pods in another. A fake node runs the commands of task
pods as processes of this machine, which have the variables of their pod and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from kubernetes import client
from tests.e2e.walker import CLUSTER, Walker, write_cluster, write_corpus
from tests.embedded_stack import Stack
from tests.kubernetes.access import make_namespace, may_make_nodes, service_account_kubeconfig
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fake_node import FakeNode
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.installation import ACCOUNT, Installation
from tests.kubernetes.played_trainer import played_trainer
from tests.kubernetes.plays import Performs, Play, Pod
from tests.kubernetes.task_pod import is_task_pod, task_of, task_pod
from tests.kubernetes.test_walk import gpu_node, outcomes

from frenzy.cli.embedded.airflow_env import airflow_environment
from frenzy.cli.embedded.tcp_ports import reserved_port
from frenzy.core.values.errors import ReasonCode
from frenzy.settings import load_settings

SOON_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The namespaces of Airflow and of the trainers, and the tasks that had a pod, by their DAG."""

    core: client.CoreV1Api
    airflow: str
    trainers: str
    tasks: list[tuple[str, str]]

    def play(self, pod: Pod) -> Play:
        if not is_task_pod(pod):
            return Performs(body=played_trainer)
        self.tasks.append(task_of(pod))
        return Performs(body=task_pod)


@pytest.fixture
def cluster(control_plane: ControlPlane, core_api: client.CoreV1Api, fake_nodes: FakeNodes) -> Iterator[Cluster]:
    if not control_plane.is_own and not may_make_nodes(control_plane):
        pytest.skip("the user of KUBECONFIG may not create nodes in this cluster")
    names = [f"frenzy-{part}-{uuid4().hex[:8]}" for part in ("airflow", "jobs")]
    for name in names:
        make_namespace(core_api, name)
    made = Cluster(core=core_api, airflow=names[0], trainers=names[1], tasks=[])
    fake_nodes.add([FakeNode(name="cpus"), *(gpu_node(each) for each in CLUSTER["nodes"])])
    fake_nodes.play(made.play)
    rights = Installation(core_api.api_client, made.trainers, airflow=made.airflow)
    rights.install()
    rights.install("executor.yaml")
    yield made
    rights.remove()
    for name in names:
        core_api.delete_namespace(name)


@pytest.fixture
def walker(
    cluster: Cluster,
    control_plane: ControlPlane,
    tmp_path: Path,
    stack_settings: Callable[[str], dict[str, str]],
) -> Iterator[Walker]:
    access = str(service_account_kubeconfig(control_plane, cluster.airflow, ACCOUNT, tmp_path))
    runs, pods, template = tmp_path / "runs", tmp_path / "pods.yaml", tmp_path / "task.yaml"
    place = {"host_path": str(runs), "mount_path": str(runs)}
    runs.mkdir()
    pods.write_text(
        yaml.safe_dump({"image": "example.test/trainer:1", "namespace": cluster.trainers, "run_directory": place})
    )
    env = {
        "FRENZY_CLUSTER": str(write_cluster(tmp_path)),
        "FRENZY_LAUNCHER": "kubernetes",
        "FRENZY_PODS": str(pods),
        "FRENZY_RUN_ROOT": str(runs),
        "FRENZY_ELASTIC": "off",
        "FRENZY_POLL_S": "0.5",
        "FRENZY_STOP_GRACE_S": "5",
        "AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor",
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": access,
        "AIRFLOW__KUBERNETES_EXECUTOR__NAMESPACE": cluster.airflow,
        "AIRFLOW__KUBERNETES_EXECUTOR__POD_TEMPLATE_FILE": str(template),
        "KUBECONFIG": access,
        **stack_settings("postgresql"),
    }
    home = tmp_path / "stack"
    with reserved_port("127.0.0.1", None, preferred=8401) as port:
        pass
    template.write_text(yaml.safe_dump(task_template(variables_of_components(env, home, port))))
    with Stack.running(home, port, env=env) as stack:
        user = Walker(stack, write_corpus(tmp_path))
        yield user
        user.http.close()


def variables_of_components(env: dict[str, str], home: Path, port: int) -> dict[str, str]:
    """What the stack's components will have beside what they inherit: the chart gives its `env` to task pods, too."""
    asked = {**env, "FRENZY_HOME": str(home), "FRENZY_PORT": str(port)}
    return airflow_environment(load_settings(asked), port, asked)


def task_template(variables: dict[str, str]) -> Pod:
    env = [{"name": name, "value": value} for name, value in sorted(variables.items())]
    base = {"name": "base", "image": "example.test/airflow:1", "env": env}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "task"},
        "spec": {"serviceAccountName": ACCOUNT, "restartPolicy": "Never", "containers": [base]},
    }


@pytest.mark.timeout(2400)  # each task imports Airflow anew, and two cores have more to do
def test_a_run_moves_to_another_plan_and_ends_with_a_pod_for_each_of_its_tasks(
    walker: Walker, cluster: Cluster
) -> None:
    dag_id, run_id = walker.start("task-pods", env={"ENDS": "97,0"}, training={"max_steps": 20})
    wait_for_ends(walker, dag_id, run_id, 1)  # a pod for each task takes its time
    wait_for_ends(walker, dag_id, run_id, 2)
    view = walker.succeed(dag_id, run_id)
    assert outcomes(view) == [ReasonCode.CUDA_OUT_OF_MEMORY, ReasonCode.COMPLETED]
    ran = [task for dag, task in cluster.tasks if dag == dag_id]
    each = {"train.profile", "train.place", "train.launch", "train.monitor", "train.decide", "train.publish"}
    assert each <= set(ran)
    assert (ran.count("train.profile"), ran.count("train.launch")) == (1, 2)
    walker.eventually("no pod", lambda: not _pods(cluster), SOON_S)


def wait_for_ends(walker: Walker, dag_id: str, run_id: str, number: int) -> None:
    def have_ended() -> bool:
        view = walker.view(dag_id, run_id)
        return view is not None and sum(each.outcome is not None for each in view.attempts) >= number

    walker.eventually(f"the end of {number} attempts", have_ended)


def _pods(cluster: Cluster) -> list[str]:
    listed = [cluster.core.list_namespaced_pod(each).items for each in (cluster.trainers, cluster.airflow)]
    return [pod.metadata.name for pods in listed for pod in pods]
