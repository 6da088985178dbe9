"""What every inventory promises, and what the one that watches a Kubernetes cluster promises besides."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest
import yaml
from tests.contract.eventually import eventually
from tests.contract.fake_kube import FakeKube
from tests.in_memory.sources import FixedInventory
from tests.unit.adapters.k8s.cluster_objects import RULES, node_object, pod_object

from frenzy.adapters.k8s.inventory.kubernetes_inventory import KubernetesInventory, NodeSource
from frenzy.adapters.spec.cluster_file import ClusterFileInventory, parse_cluster
from frenzy.core.values.cluster import Cluster, NodeState
from frenzy.core.values.errors import ReasonCode, SpecError, TemporaryError
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.core.values.units import GIB
from frenzy.ports import Inventory

A100 = CATALOGUE["a100-80"].gpu
DEVICES = Path(__file__).parents[1] / "data/kubernetes/devices.yaml"


class World(Protocol):
    """An inventory of machines with eight A100 each, and the machines."""

    inventory: Inventory

    def add(self, name: str) -> None: ...
    def drain(self, name: str) -> None: ...
    def remove(self, name: str) -> None: ...


def cluster_yaml(machines: dict[str, str]) -> str:
    nodes = "".join(
        f"  - {{name: {name}, gpu_type: a100-80, gpus: 8, state: {state}}}\n" for name, state in machines.items()
    )
    return f"nodes:\n{nodes}"


class MemoryWorld:
    def __init__(self, _folder: Path) -> None:
        self._machines: dict[str, str] = {}
        self.inventory = FixedInventory(Cluster((), ()))

    def add(self, name: str) -> None:
        self._put(name, "ready")

    def drain(self, name: str) -> None:
        self._put(name, "draining")

    def remove(self, name: str) -> None:
        del self._machines[name]
        self.inventory.replace(parse_cluster(cluster_yaml(self._machines)))

    def _put(self, name: str, state: str) -> None:
        self._machines[name] = state
        self.inventory.replace(parse_cluster(cluster_yaml(self._machines)))


class FileWorld(MemoryWorld):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._file = folder / "cluster.yaml"
        self.inventory = ClusterFileInventory(self._file)  # type: ignore[assignment]

    def remove(self, name: str) -> None:
        del self._machines[name]
        self._file.write_text(cluster_yaml(self._machines), encoding="utf-8")

    def _put(self, name: str, state: str) -> None:
        self._machines[name] = state
        self._file.write_text(cluster_yaml(self._machines), encoding="utf-8")


class KubernetesWorld:
    def __init__(self, folder: Path, *, patience_s: float = 30.0) -> None:
        self.kube = FakeKube()
        self.file = folder / "types.yaml"
        self.file.write_text("gpu_types: {a100-80: }\n", encoding="utf-8")
        self.inventory = KubernetesInventory(
            lambda: self.kube,  # type: ignore[arg-type,return-value]
            RULES,
            cluster_file=self.file,
            resource_api=lambda: self.kube,
            patience_s=patience_s,
        )

    def add(self, name: str) -> None:
        self.kube.put(self.kube.nodes, node_object(name))

    def drain(self, name: str) -> None:
        self.kube.put(self.kube.nodes, node_object(name, cordoned=True))

    def remove(self, name: str) -> None:
        self.kube.remove(self.kube.nodes, name)


WORLDS: dict[str, type] = {"memory": MemoryWorld, "file": FileWorld, "kubernetes": KubernetesWorld}


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = WORLDS[request.param](tmp_path)
    made.add("n1")
    made.add("n2")
    yield made
    if isinstance(made, KubernetesWorld):
        made.inventory.close()


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[KubernetesWorld]:
    made = KubernetesWorld(tmp_path)
    yield made
    made.inventory.close()


def names(inventory: Inventory) -> list[str]:
    return [each.name for each in inventory.cluster().nodes]


def test_it_tells_nodes_and_their_types(world: World) -> None:
    cluster = world.inventory.cluster()
    assert names(world.inventory) == ["n1", "n2"]
    assert cluster.gpu_types == (A100,)
    assert cluster.num_gpus_by_type == {"a100-80": 16}
    assert {each.state for each in cluster.nodes} == {NodeState.READY}


def test_asked_again_without_a_change_it_says_the_same(world: World) -> None:
    assert world.inventory.cluster() == world.inventory.cluster()


def test_it_sees_nodes_come_drain_and_go(world: World) -> None:
    world.inventory.cluster()
    world.add("n3")
    eventually(lambda: names(world.inventory) == ["n1", "n2", "n3"])
    world.drain("n3")
    eventually(lambda: world.inventory.cluster().nodes_by_name["n3"].state is NodeState.DRAINING)
    world.remove("n2")
    eventually(lambda: names(world.inventory) == ["n1", "n3"])


# Kubernetes


def usable(world: KubernetesWorld, name: str = "n1") -> int:
    return world.inventory.cluster().nodes_by_name[name].num_usable


def test_pods_of_others_come_and_go(kubernetes: KubernetesWorld) -> None:
    kubernetes.add("n1")
    assert usable(kubernetes) == 8
    kubernetes.kube.put(kubernetes.kube.pods, pod_object("theirs", "n1", {"nvidia.com/gpu": "3"}))
    eventually(lambda: usable(kubernetes) == 5)
    kubernetes.kube.remove(kubernetes.kube.pods, "theirs")
    eventually(lambda: usable(kubernetes) == 8)


def test_changes_cost_no_further_list(kubernetes: KubernetesWorld) -> None:
    kubernetes.add("n1")
    kubernetes.inventory.cluster()
    for index in range(5):
        kubernetes.add(f"new-{index}")
        eventually(lambda index=index: f"new-{index}" in names(kubernetes.inventory))  # type: ignore[misc]
    assert (kubernetes.kube.nodes.num_lists, kubernetes.kube.pods.num_lists) == (1, 1)


@pytest.mark.parametrize("status", [404, 403], ids=["of an old server", "that it may not list"])
def test_devices_that_can_be_claimed_are_none_on_a_server(kubernetes: KubernetesWorld, status: int) -> None:
    kubernetes.kube.refuses_devices = status
    kubernetes.add("n1")
    assert usable(kubernetes) == 8


def test_claims_of_others_come_and_go(kubernetes: KubernetesWorld) -> None:
    kube = kubernetes.kube
    kube.refuses_devices = None
    devices = yaml.safe_load(DEVICES.read_text(encoding="utf-8"))
    devices["slice"]["spec"]["nodeName"] = "n1"
    kube.put(kube.slices, devices["slice"])
    kubernetes.add("n1")
    assert usable(kubernetes) == 8
    kube.put(kube.claims, devices["claim"])
    eventually(lambda: usable(kubernetes) == 7)
    kube.remove(kube.claims, devices["claim"]["metadata"]["name"])
    eventually(lambda: usable(kubernetes) == 8)


def test_node_without_a_plugin_comes_with_its_slice_and_the_class(kubernetes: KubernetesWorld) -> None:
    kube = kubernetes.kube
    kube.refuses_devices = None
    devices = yaml.safe_load(DEVICES.read_text(encoding="utf-8"))
    kube.put(kube.nodes, node_object("gpu-1", labels={}, resources={}))
    kube.put(kube.classes, devices["class"])
    assert names(kubernetes.inventory) == []
    kube.put(kube.slices, devices["slice"])
    eventually(lambda: names(kubernetes.inventory) == ["gpu-1"])
    assert usable(kubernetes, "gpu-1") == 2


def test_a_version_that_is_too_old_means_one_more_list(kubernetes: KubernetesWorld) -> None:
    kubernetes.add("n1")
    kubernetes.inventory.cluster()
    eventually(lambda: kubernetes.kube.nodes.watches != [])
    kubernetes.kube.expire(kubernetes.kube.nodes)
    kubernetes.add("n2")
    eventually(lambda: names(kubernetes.inventory) == ["n1", "n2"])
    assert kubernetes.kube.nodes.num_lists == 2


def test_a_watch_that_ends_goes_on_from_where_it_was(kubernetes: KubernetesWorld) -> None:
    kubernetes.add("n1")
    kubernetes.inventory.cluster()
    eventually(lambda: len(kubernetes.kube.nodes.watches) == 1)
    kubernetes.kube.nodes.watches.pop().shutdown()
    kubernetes.add("n2")
    eventually(lambda: names(kubernetes.inventory) == ["n1", "n2"])
    assert kubernetes.kube.nodes.num_lists == 1


def test_many_nodes_come_in_pages(kubernetes: KubernetesWorld) -> None:
    for index in range(1200):
        kubernetes.add(f"n{index:04d}")
    assert len(names(kubernetes.inventory)) == 1200
    assert kubernetes.kube.nodes.num_lists == 3


def test_a_page_is_asked_for_when_the_one_before_it_is_read(kubernetes: KubernetesWorld) -> None:
    """A cluster's pods as they come are hundreds of megabytes; little is kept of each."""
    for index in range(1200):
        kubernetes.add(f"n{index:04d}")
    objects = iter(NodeSource(lambda: kubernetes.kube).list()[0])
    next(objects)
    assert kubernetes.kube.nodes.num_lists == 1
    assert sum(1 for _ in objects) == 1199
    assert kubernetes.kube.nodes.num_lists == 3


def test_a_server_that_fails_for_a_while_is_asked_again(kubernetes: KubernetesWorld) -> None:
    kubernetes.add("n1")
    kubernetes.kube.fails_next = [500, 503]
    assert names(kubernetes.inventory) == ["n1"]


def test_where_pods_of_others_may_not_be_listed_the_gap_is_told(
    kubernetes: KubernetesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.add("n1")
    kubernetes.kube.forbids_all_pods = True
    kubernetes.kube.put(kubernetes.kube.pods, pod_object("theirs", "n1", {"nvidia.com/gpu": "3"}))
    own = pod_object("not-the-ledgers", "n1", {"nvidia.com/gpu": "1"}, namespace=RULES.namespace)
    kubernetes.kube.put(kubernetes.kube.pods, own)
    with caplog.at_level(logging.WARNING):
        assert usable(kubernetes) == 7
    assert "frenzy-pods-of-others" in caplog.text


def test_what_people_should_know_is_told_once_for_all_nodes(
    kubernetes: KubernetesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(3):
        kubernetes.kube.put(kubernetes.kube.nodes, node_object(f"bare-{index}", labels={}))
    with caplog.at_level(logging.WARNING):
        kubernetes.inventory.cluster()
        kubernetes.inventory.cluster()
    assert caplog.text.count("GPU feature discovery") == 1
    assert "bare-0 and 2 more" in caplog.text


def test_a_bad_cluster_file_is_refused_and_a_mended_one_taken(kubernetes: KubernetesWorld) -> None:
    kubernetes.add("n1")
    kubernetes.file.write_text("gpu_types: {a100-80: {price_per_hour: -1}}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="price_per_hour"):
        kubernetes.inventory.cluster()
    kubernetes.file.write_text("gpu_types: {a100-80: {price_per_hour: 2}}\n", encoding="utf-8")
    assert kubernetes.inventory.cluster().types_by_name["a100-80"].price_per_hour == 2


def test_a_server_that_never_answered_is_a_reason_to_try_later(tmp_path: Path) -> None:
    world = KubernetesWorld(tmp_path, patience_s=0.01)
    world.kube.fails_next = [500] * 100
    with pytest.raises(TemporaryError) as told:
        world.inventory.cluster()
    assert told.value.reason.code is ReasonCode.API_UNREACHABLE
    world.inventory.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_whose_thread_ended_is_started_again_with_the_next_question(tmp_path: Path) -> None:
    world = KubernetesWorld(tmp_path)
    world.add("n1")
    ends = [SystemExit(), SystemExit()]  # what ends a thread, whatever it catches

    def core_api() -> FakeKube:
        if ends:
            raise ends.pop()
        return world.kube

    inventory = KubernetesInventory(core_api, RULES, cluster_file=world.file, patience_s=0.2)  # type: ignore[arg-type]

    def names_told() -> list[str]:
        with suppress(TemporaryError):
            return names(inventory)
        return []

    assert names_told() == []
    eventually(lambda: names_told() == ["n1"])
    inventory.close()


DESCRIBED = "gpu_types: {a100-80: }\nnodes: [{name: by-hand, gpu_type: a100-80, gpus: 4, host_memory: 100 GiB}]\n"


def test_where_nodes_may_not_be_listed_those_of_the_cluster_file_are_used_with_a_warning(
    kubernetes: KubernetesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.add("n1")
    kubernetes.kube.forbids_nodes = True
    kubernetes.file.write_text(DESCRIBED, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        (described,) = kubernetes.inventory.cluster().nodes
    assert (described.name, described.num_usable) == ("by-hand", 4)
    assert described.host_memory_bytes == 100 * GIB - 4 * (
        RULES.extra_host_memory_per_gpu_bytes + RULES.shm_per_gpu_bytes
    )
    assert "frenzy-nodes" in caplog.text
    kubernetes.kube.forbids_nodes = False
    eventually(lambda: names(kubernetes.inventory) == ["n1"])


def test_where_nodes_may_neither_be_listed_nor_are_described_it_says_so(kubernetes: KubernetesWorld) -> None:
    kubernetes.kube.forbids_nodes = True
    with pytest.raises(TemporaryError, match="describes none") as told:
        kubernetes.inventory.cluster()
    assert "frenzy-nodes" in str(told.value.reason.remedy)


def test_nodes_that_were_listed_stay_known_when_the_right_to_list_them_goes(kubernetes: KubernetesWorld) -> None:
    kubernetes.add("n1")
    assert names(kubernetes.inventory) == ["n1"]
    kubernetes.file.write_text(DESCRIBED, encoding="utf-8")
    eventually(lambda: len(kubernetes.kube.nodes.watches) == 1)
    kubernetes.kube.forbids_nodes = True
    kubernetes.kube.expire(kubernetes.kube.nodes)
    assert names(kubernetes.inventory) == ["n1"]
