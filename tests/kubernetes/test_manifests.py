"""Our manifests on a real API server: accepted as they are, never started twice, put where the placement says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from kubernetes import client
from tests.contract.eventually import eventually
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fake_node import FakeNode, gpu_nodes
from tests.kubernetes.fake_nodes import FakeNodes
from tests.kubernetes.plays import Runs
from tests.kubernetes.pods import wait_for_pod
from tests.unit.adapters.k8s.pod_examples import A100, EXAMPLES, PLAIN, Example, node, spec

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.launcher.kubernetes_preparer import KubernetesPreparer
from frenzy.adapters.k8s.launcher.manifest_yaml import manifest_yaml
from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.launcher.preparing_pod import preparing_pod
from frenzy.adapters.k8s.pod_rules import PodRules, RunDirectory, parse_pod_rules
from frenzy.adapters.k8s.quantity import parse_quantity
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.prepared_data import PreparingSpec
from frenzy.ports import WorkersState

PRODUCT = "NVIDIA-A100-SXM4-80GB"
RULES = parse_pod_rules(PLAIN)


@pytest.fixture(scope="module")
def classes(core_api: client.CoreV1Api) -> Iterator[None]:
    """The classes that one example names; an API server refuses pods of classes that are not there."""
    scheduling, runtimes = (kind(core_api.api_client) for kind in (client.SchedulingV1Api, client.NodeV1Api))
    priority = {"metadata": {"name": "training"}, "value": 1000}
    runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    with (
        _unless_there(scheduling.create_priority_class, priority, scheduling.delete_priority_class),
        _unless_there(runtimes.create_runtime_class, runtime, runtimes.delete_runtime_class),
    ):
        yield


@contextmanager
def _unless_there(create: Any, body: dict[str, Any], delete: Any) -> Iterator[None]:
    """Made for the block; what is there already, as the GPU operator's class is, stays as it is."""
    try:
        create(body)
    except client.ApiException as error:
        if error.status != 409:
            raise
        yield
        return
    yield
    delete(body["metadata"]["name"])


def rules_of(example: Example, namespace: str) -> PodRules:
    return replace(example.rules, namespace=namespace)


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_api_server_accepts_every_pod(name: str, core_api: client.CoreV1Api, kube_namespace: str) -> None:
    for pod in pods_of(EXAMPLES[name].spec, rules_of(EXAMPLES[name], kube_namespace)):
        accepted = core_api.create_namespaced_pod(kube_namespace, pod, dry_run="All", field_validation="Strict")
        assert accepted.metadata.name == pod["metadata"]["name"]


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize("name", EXAMPLES)
def test_kubectl_takes_the_printed_yaml_as_it_is(name: str, control_plane: ControlPlane, kube_namespace: str) -> None:
    if control_plane.kubectl is None:
        pytest.skip("there is no kubectl")
    pods = pods_of(EXAMPLES[name].spec, rules_of(EXAMPLES[name], kube_namespace))
    command = (
        control_plane.kubectl,
        f"--kubeconfig={control_plane.kubeconfig}",
        "apply",
        "--dry-run=server",
        "-f",
        "-",
    )
    said = subprocess.run(command, input=manifest_yaml(pods), capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.count("created (server dry run)") == len(pods)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_api_server_keeps_every_field(name: str, core_api: client.CoreV1Api, kube_namespace: str) -> None:
    """What it drops without a word would be a field that it does not know, or not in that place."""
    example = EXAMPLES[name]
    rules = replace(rules_of(example, kube_namespace), priority_class=None, runtime_class=None)
    for pod in pods_of(example.spec, rules):
        kept = core_api.create_namespaced_pod(kube_namespace, pod, dry_run="All", _preload_content=False)
        assert _missing(pod, json.loads(kept.data), "") == []


def preparing(namespace: str) -> tuple[PreparingSpec, PodRules]:
    given = EXAMPLES["one-gpu"].spec
    spec = PreparingSpec(run_key=given.run_key, number=1, job=given.job, run_dir=given.run_dir)
    return spec, replace(RULES, namespace=namespace)


def test_the_api_server_keeps_every_field_of_a_pod_that_prepares(
    core_api: client.CoreV1Api, kube_namespace: str
) -> None:
    pod = preparing_pod(*preparing(kube_namespace))
    options = {"dry_run": "All", "field_validation": "Strict", "_preload_content": False}
    kept = core_api.create_namespaced_pod(kube_namespace, pod, **options)
    assert _missing(pod, json.loads(kept.data), "") == []


def test_a_pod_that_prepares_is_made_once_found_and_removed(core_api: client.CoreV1Api, kube_namespace: str) -> None:
    spec, rules = preparing(kube_namespace)
    preparer = KubernetesPreparer(replace(rules, preparing_pods=3), core_api=lambda: core_api)
    for _ in range(2):
        preparer.start(spec, lambda _: None)
    assert len(core_api.list_namespaced_pod(kube_namespace).items) == 3
    assert preparer.found(spec.run_key) == 1
    assert preparer.account(spec).state is WorkersState.ALIVE
    assert preparer.remains() == (spec.run_key,)
    preparer.stop(spec.run_key)
    eventually(lambda: preparer.remains() == ())


def _missing(sent: Any, kept: Any, path: str) -> list[str]:
    """Paths of ``sent`` whose values are not in ``kept``, where lists keep their order and may grow."""
    if isinstance(sent, dict):
        return [each for key, value in sent.items() for each in _missing(value, (kept or {}).get(key), f"{path}.{key}")]
    if isinstance(sent, list):
        pairs = zip(sent, kept or [None] * len(sent), strict=False)
        return [each for index, (one, other) in enumerate(pairs) for each in _missing(one, other, f"{path}[{index}]")]
    return [] if _same(sent, kept) else [f"{path}: {sent!r} became {kept!r}"]


def _same(sent: Any, kept: Any) -> bool:
    """A server writes quantities in their shortest form, and leaves empty text out."""
    if sent == kept or (sent == "" and kept is None):
        return True
    try:
        return parse_quantity(str(sent)) == parse_quantity(str(kept))
    except ValueError:
        return False


def on_nodes(*names: str, num_gpus: int = 8) -> LaunchSpec:
    return spec(A100, *(node(name, A100, num_gpus) for name in names), secrets={})


def without_volume(namespace: str) -> PodRules:
    """A claim that is not there would keep pods from being scheduled; the folder need not be there on fake nodes."""
    runs = RunDirectory(host_path="/var/lib/frenzy/runs", mount_path="/var/lib/frenzy/runs")
    return replace(RULES, namespace=namespace, run_directory=runs)


def test_the_same_attempt_is_never_started_twice(core_api: client.CoreV1Api, kube_namespace: str) -> None:
    (pod,) = pods_of(on_nodes("a"), without_volume(kube_namespace))
    core_api.create_namespaced_pod(kube_namespace, pod)
    with pytest.raises(client.ApiException) as refused:
        core_api.create_namespaced_pod(kube_namespace, pod)
    assert refused.value.status == 409


def test_pods_run_on_the_nodes_of_their_placement_and_are_found_by_their_attempt(
    core_api: client.CoreV1Api, kube_namespace: str, fake_nodes: FakeNodes
) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    fake_nodes.add(gpu_nodes("a100", 3, product=PRODUCT, memory_mib=81920, taints=(taint,)))
    fake_nodes.play(Runs())
    given = on_nodes("a100-2", "a100-0")
    for pod in pods_of(given, without_volume(kube_namespace)):
        core_api.create_namespaced_pod(kube_namespace, pod)
    for rank, name in enumerate(("a100-2", "a100-0")):
        pod_name = labels.pod_name(given.run_key, given.attempt, rank)
        pod = wait_for_pod(core_api, kube_namespace, pod_name, lambda each: each.status.phase == "Running")
        assert pod.spec.node_name == name
    found = core_api.list_namespaced_pod(kube_namespace, label_selector=labels.selector(given.run_key, given.attempt))
    assert len(found.items) == 2
    other = labels.selector(given.run_key, given.attempt + 1)
    assert core_api.list_namespaced_pod(kube_namespace, label_selector=other).items == []


def test_the_schedulers_own_checks_still_count(
    core_api: client.CoreV1Api, kube_namespace: str, fake_nodes: FakeNodes
) -> None:
    """A placement that is out of date waits; it does not run on GPUs that are not there."""
    fake_nodes.add([FakeNode(name="small", resources={"nvidia.com/gpu": "4"})])
    (pod,) = pods_of(on_nodes("small", num_gpus=8), without_volume(kube_namespace))
    core_api.create_namespaced_pod(kube_namespace, pod)

    def told(each: Any) -> bool:
        return any(one.reason == "Unschedulable" for one in each.status.conditions or ())

    waiting = wait_for_pod(core_api, kube_namespace, pod["metadata"]["name"], told)
    assert waiting.spec.node_name is None
    assert "nvidia.com/gpu" in next(one.message for one in waiting.status.conditions if one.reason == "Unschedulable")
