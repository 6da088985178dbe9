"""Which adapters the settings pick, by which way they reach a cluster, and how a process comes by its services."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import incluster_config, kube_config
from tests.in_memory.job_store import InMemoryJobStore
from tests.in_memory.ledger import InMemoryLedger
from tests.in_memory.run_store import InMemoryRunStore

from frenzy.adapters.calibration_file import default_calibration
from frenzy.adapters.k8s.inventory.kubernetes_inventory import KubernetesInventory
from frenzy.adapters.spec.cluster_file import ClusterFileInventory, parse_cluster
from frenzy.app.services import Services
from frenzy.core.scheduling import policy_named
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, TemporaryError
from frenzy.settings import LauncherKind, PlacementPolicy, Settings
from frenzy.wiring import OneInstallation, SystemClock, inventory, kubernetes_api, pod_rules, services_for

KUBERNETES = Settings(launcher=LauncherKind.KUBERNETES, stop_grace_s=45)


def test_gpus_are_told_by_the_cluster_file_or_by_the_cluster_that_workers_run_on() -> None:
    assert isinstance(inventory(Settings()), ClusterFileInventory)
    assert isinstance(inventory(KUBERNETES), KubernetesInventory)


def test_pod_rules_come_from_the_settings_file_with_the_settings_grace() -> None:
    assert pod_rules(KUBERNETES).stop_grace_s == 45
    with pytest.raises(SpecError, match="nowhere"):
        pod_rules(replace(KUBERNETES, pod_rules_file=KUBERNETES.pod_rules_file.with_name("nowhere.yaml")))


def test_the_scheduler_counts_as_many_cpus_for_a_gpu_as_its_pod_requests(tmp_path: Path) -> None:
    rules = tmp_path / "pods.yaml"
    rules.write_text("image: trainer:1\ncpus_per_gpu: 4\n", encoding="utf-8")
    types = tmp_path / "types.yaml"
    types.write_text("gpu_types: {t4: }\n", encoding="utf-8")
    settings = replace(KUBERNETES, pod_rules_file=rules, cluster_file=types, home=tmp_path)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    for name in PlacementPolicy:
        assert services_for(replace(settings, placement_policy=name), url).policy.cpus_per_gpu == 4
    assert services_for(Settings(home=tmp_path, pod_rules_file=rules), url).policy.cpus_per_gpu == 1


def test_cards_of_jobs_are_known_by_their_drivers_names(tmp_path: Path) -> None:
    services = services_for(Settings(home=tmp_path), f"sqlite:///{tmp_path / 'ledger.db'}")
    assert [each.name for each in services.sold_as("NVIDIA-A100-SXM4-80GB")] == ["a100-80"]


# the way to a cluster


def kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def connection(server: str) -> str:
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(kubeconfig(server))}})


@dataclass
class Ways:
    """Ways to a cluster that a process may have; each leads to a server of its own name."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def kubeconfig(self) -> None:
        file = self.folder / "kubeconfig"
        file.write_text(json.dumps(kubeconfig("https://by-file.example:6443")), encoding="utf-8")
        self.monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))

    def pod(self) -> None:
        token, authority = self.folder / "token", self.folder / "ca.crt"
        token.write_text("secret", encoding="utf-8")
        authority.write_text("certificate", encoding="utf-8")
        self.monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "as-a-pod.example")
        self.monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        self.monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        self.monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))

    def connection(self, name: str, server: str = "https://by-connection.example:6443") -> None:
        self.monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", connection(server))


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ways:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nowhere"))
    return Ways(tmp_path, monkeypatch)


def host(conn_id: str = "kubernetes_default") -> str:
    return str(kubernetes_api(conn_id).api_client.configuration.host)


def test_the_connection_comes_first_then_the_pods_own_account_then_a_kubeconfig(ways: Ways) -> None:
    ways.kubeconfig()
    assert host() == "https://by-file.example:6443"
    ways.pod()
    assert host() == "https://as-a-pod.example:443"
    ways.connection("kubernetes_default")
    assert host() == "https://by-connection.example:6443"


def test_without_any_way_it_says_what_to_set(ways: Ways) -> None:
    with pytest.raises(PermanentError, match="kubernetes_default") as told:
        kubernetes_api("kubernetes_default")
    assert "KUBECONFIG" in str(told.value.reason.remedy)


class _Asked(BaseHTTPRequestHandler):
    """An API server without nodes and pods, which lets nobody watch."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path.partition("?")[0])  # type: ignore[attr-defined]
        self.send_response(500 if "watch=" in self.path else 200)
        body = json.dumps({"items": [], "metadata": {"resourceVersion": "1"}}).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def api_server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Asked)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_inventory_asks_the_cluster_that_the_launchers_connection_leads_to(
    ways: Ways, api_server: ThreadingHTTPServer
) -> None:
    ways.kubeconfig()
    ways.connection("training_cluster", f"http://127.0.0.1:{api_server.server_port}")
    asking = inventory(replace(KUBERNETES, kubernetes_conn_id="training_cluster"))
    assert isinstance(asking, KubernetesInventory)
    assert asking.cluster().nodes == ()
    asking.close()
    assert {"/api/v1/nodes", "/api/v1/pods"} <= set(api_server.asked)  # type: ignore[attr-defined]


# the services of a process


@dataclass
class SlowInventory:
    """Answers when it is let, and counts questions; fails as often as it is told."""

    fails: int = 0
    questions: int = 0
    go_on: threading.Event = field(default_factory=threading.Event)

    def cluster(self) -> Cluster:
        self.go_on.wait(30)
        self.questions += 1
        if self.questions <= self.fails:
            raise TemporaryError(Reason(code=ReasonCode.API_UNREACHABLE, detail="away"), retry_after_s=1)
        return parse_cluster("nodes: [{name: n1, gpu_type: t4, gpus: 2}]")


def services_with(told: SlowInventory) -> Services:
    return Services(
        clock=SystemClock(),
        ledger=InMemoryLedger(),
        runs=InMemoryRunStore(),
        jobs=InMemoryJobStore(),
        inventory=told,
        calibration=default_calibration(),
        policy=policy_named("has"),
        marp_policy="paper",
        lease_s=60.0,
    )


def test_many_who_ask_first_and_at_once_get_the_same_services() -> None:
    made: list[Services] = []

    def make() -> Services:
        made.append(services_with(told))
        return made[-1]

    told = SlowInventory()
    installation = OneInstallation(make)
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(installation.services) for _ in range(8)]
        told.go_on.set()
        assert {id(each.result()) for each in asking} == {id(made[0])}
    assert len(made) == 1


def test_after_a_failed_first_answer_the_same_inventory_is_asked_again() -> None:
    told = SlowInventory(fails=2)
    told.go_on.set()
    made: list[Services] = []

    def make() -> Services:
        made.append(services_with(told))
        return made[-1]

    installation = OneInstallation(make)
    for _ in range(2):
        with pytest.raises(TemporaryError):
            installation.services()
    with installation.services().ledger.transaction() as tx:
        assert [each.name for each in tx.cluster().nodes] == ["n1"]
    before = told.questions
    installation.services()
    assert (len(made), told.questions) == (1, before)
