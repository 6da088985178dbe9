"""Many jobs on a large cluster: a real API server and scheduler, fake nodes, and the product's own parts.

Measured beside the time: the calls that our service account makes, from the API server's audit log, once on a
hundred nodes and once on a thousand. What a job costs must not depend on the cluster's size. The ledger is the
one in memory: its costs are the benchmark `ledger`.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from tests.bench.report import figure, publish
from tests.contract.eventually import eventually
from tests.in_memory.job_store import InMemoryJobStore
from tests.in_memory.ledger import InMemoryLedger
from tests.kubernetes.access import make_namespace, service_account_kubeconfig
from tests.kubernetes.audit import Call, calls
from tests.kubernetes.build import built
from tests.kubernetes.control_plane import ControlPlane, own_cluster
from tests.kubernetes.debian import CannotBuildError
from tests.kubernetes.fake_node import gpu_nodes
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.installation import ACCOUNT, Installation
from tests.kubernetes.plays import succeeds
from tests.kubernetes.recipe import Part

from frenzy.adapters.calibration_file import default_calibration
from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.k8s.inventory.kubernetes_inventory import KubernetesInventory
from frenzy.adapters.k8s.launcher.kubernetes_launcher import KubernetesLauncher
from frenzy.adapters.k8s.pod_rules import PodRules, RunDirectory
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.app.observe import attempt_launching
from frenzy.app.place import enqueue, place_status
from frenzy.app.register import register_run
from frenzy.app.services import Services
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.ledger import DataFacts, RunIdentity
from frenzy.core.runs.protocol import EndReport, PlaceStatus, RegisterRun
from frenzy.core.scheduling import policy_named
from frenzy.core.values.cluster import NodeState
from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import WorkersState
from frenzy.wiring import SystemClock

SIZES: Final = (100, 1000)
NUM_JOBS: Final = 200
GPUS_PER_NODE: Final = 8
# A Llama of 8 billion parameters in full: it needs several cards.
JOB: Final = """
name: bench
model:
  config: {model_type: llama, hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32,
           num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 8192,
           tie_word_embeddings: false}
data: {path: /data/text.parquet, format: parquet, sequence_length: 2048}
training: {global_batch_size: 64, max_steps: 100, precision: bf16}
checkpoint: {every_steps: 50}
"""


@dataclass
class Site:
    """The product on one cluster, as our service account; ``times`` are seconds by what took them."""

    cluster: ControlPlane
    nodes: FakeNodes
    services: Services
    launcher: KubernetesLauncher
    inventory: KubernetesInventory
    namespace: str
    times: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started_s = time.perf_counter()
        yield
        self.times[name] = time.perf_counter() - started_s

    def calls(self) -> Counter[Call]:
        assert self.cluster.audit_log is not None
        return calls(self.cluster.audit_log, self.namespace, ACCOUNT)


def main() -> list[dict[str, Any]]:
    """Each size on a control plane of its own; publish times and calls. Nothing where none can be built."""
    try:
        built(Part.API)
    except CannotBuildError as error:
        print(f"left out: {error}")
        return []
    rows: list[dict[str, Any]] = []
    per_job: dict[int, float] = {}
    for num_nodes in SIZES:
        with _site() as site:
            with site.timed("nodes created"):
                site.nodes.add(_nodes(num_nodes))
            num_jobs = min(NUM_JOBS, num_nodes)
            _measure_inventory(site, num_nodes)
            specs = _place(site, num_jobs)
            before = site.calls()
            _run(site, specs)
            made = site.calls() - before
            per_job[num_nodes] = _of_jobs(made) / num_jobs
            rows += _rows(site, num_nodes, specs, made)
    smallest, largest = SIZES[0], SIZES[-1]
    grown = per_job[largest] / per_job[smallest]
    rows.append(figure(f"calls for each job, {largest} nodes against {smallest}", grown, "x", 1.0))
    return publish("k8s", rows)


@contextmanager
def _site() -> Iterator[Site]:
    with own_cluster(Part.API) as cluster, tempfile.TemporaryDirectory() as folder, cluster.api_client() as api:
        core, namespace = client.CoreV1Api(api), "frenzy-bench"
        make_namespace(core, namespace)
        Installation(api, namespace).install()
        kubeconfig = service_account_kubeconfig(cluster, namespace, ACCOUNT, Path(folder))
        site = _made(cluster, namespace, Path(folder), lambda: _core(kubeconfig))
        try:
            yield site
        finally:
            site.inventory.close()
            site.nodes.stop()


def _core(kubeconfig: Path) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))


def _made(cluster: ControlPlane, namespace: str, folder: Path, core_api: Callable[[], client.CoreV1Api]) -> Site:
    home = str(folder / "runs")
    runs, mounted = FsspecRunStore(home), RunDirectory(mount_path=home, host_path=home)
    rules = PodRules(image="trainer:1", namespace=namespace, run_directory=mounted)
    types = folder / "types.yaml"
    types.write_text("gpu_types: {}\n", encoding="utf-8")
    inventory = KubernetesInventory(core_api, rules, cluster_file=types)
    nodes = FakeNodes(
        str(cluster.kubeconfig), address=cluster.node_address, serving=cluster.serving(), sends_heartbeats=False
    )
    nodes.play(succeeds())
    services = Services(
        clock=SystemClock(),
        ledger=InMemoryLedger(),
        runs=runs,
        jobs=InMemoryJobStore(),
        inventory=inventory,
        calibration=default_calibration(),
        policy=policy_named("has"),
        marp_policy="closed-form",
        lease_s=3600.0,
    )
    launcher = KubernetesLauncher(runs, rules, core_api=core_api)
    return Site(cluster, nodes, services, launcher, inventory, namespace)


def _nodes(num_nodes: int) -> tuple[Any, ...]:
    """Two types, half of the nodes each."""
    half = num_nodes // 2
    return (
        *gpu_nodes("a100", half, product="NVIDIA-A100-SXM4-80GB", memory_mib=81920, gpus=GPUS_PER_NODE),
        *gpu_nodes("h100", num_nodes - half, product="NVIDIA-H100-80GB-HBM3", memory_mib=81559, gpus=GPUS_PER_NODE),
    )


def _measure_inventory(site: Site, num_nodes: int) -> None:
    with site.timed("inventory: first list"):
        assert len(site.inventory.cluster().nodes) == num_nodes
    with site.timed("inventory: asked again, nothing changed"):
        site.inventory.cluster()
    core = site.cluster.core_api()
    with site.timed("inventory: a cordoned node is seen"):
        core.patch_node("a100-0", {"spec": {"unschedulable": True}})
        eventually(lambda: site.inventory.cluster().nodes_by_name["a100-0"].state is NodeState.DRAINING)
    core.patch_node("a100-0", {"spec": {"unschedulable": False}})
    eventually(lambda: site.inventory.cluster().nodes_by_name["a100-0"].state is not NodeState.DRAINING)


def _place(site: Site, num_jobs: int) -> list[LaunchSpec]:
    """Every job registered and placed; each asks for its own pass, as in the product."""
    job = job_from_yaml(JOB)
    specs = []
    with site.timed("jobs planned and placed"):
        for index in range(num_jobs):
            identity = RunIdentity(dag_id=f"job_{index}", run_id="bench", task_group="train")
            facts = DataFacts(num_tokens=10**9)
            request = RegisterRun(identity=identity, job=job, model_config=job.model.config, data_facts=facts)
            register_run(site.services, request)
            enqueue(site.services, identity.run_key)
            place = place_status(site.services, identity.run_key)
            assert place.status is PlaceStatus.PLACED and place.spec is not None, place
            specs.append(place.spec)
    return specs


def _run(site: Site, specs: list[LaunchSpec]) -> None:
    """Launch all, let all end, look at each until it is gone, settle it, and remove its pods."""
    with site.timed("jobs launched"):
        for spec in specs:
            attempt_launching(site.services, spec.run_key, spec.attempt)
            site.launcher.launch(spec)
    core = site.cluster.core_api()
    with site.timed("all pods ended"):
        _let_pods_end(site, core)
    with site.timed("jobs seen to be gone, settled, removed"):
        for spec in specs:
            account = site.launcher.account(spec)
            assert account.state is WorkersState.GONE, account
            result = site.services.runs.result(spec.run_key, spec.attempt)
            end_attempt(site.services, spec.run_key, spec.attempt, EndReport(result=result))
            site.launcher.remove(spec.run_key, spec.attempt)
    assert site.launcher.remains() == ()


def _let_pods_end(site: Site, core: client.CoreV1Api) -> None:
    def num_left() -> int:
        ended = "status.phase!=Succeeded"
        return len(core.list_namespaced_pod(site.namespace, field_selector=ended, limit=1).items)

    eventually(lambda: num_left() == 0, within_s=300)


def _of_jobs(made: Counter[Call]) -> int:
    """Calls for single jobs: not the inventory's, which sees the cluster and belongs to none."""
    return sum(number for call, number in made.items() if call.is_namespaced)


def _rows(site: Site, num_nodes: int, specs: list[LaunchSpec], made: Counter[Call]) -> list[dict[str, Any]]:
    at = f"{num_nodes} nodes"
    num_gpus = sum(spec.plan.num_gpus for spec in specs)
    rows = [figure(f"{at}: jobs on {num_gpus} of {num_nodes * GPUS_PER_NODE} GPUs", len(specs), "jobs")]
    rows += [figure(f"{at}: {name}", seconds, "s") for name, seconds in site.times.items()]
    for call, number in sorted(made.items()):
        if call.is_namespaced:
            rows.append(figure(f"{at}: {call}, for each job", number / len(specs), "calls"))
    rows.append(figure(f"{at}: all calls for each job", _of_jobs(made) / len(specs), "calls"))
    return rows


if __name__ == "__main__":
    main()
