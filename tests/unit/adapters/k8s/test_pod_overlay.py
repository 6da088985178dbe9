"""Overlays of the administrator: what they may add to which pods, and what stays Frenzy's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.adapters.k8s.pod_examples import A100, PLAIN, container, node, spec

from frenzy.adapters.k8s.launcher.pod_manifest import pods_of
from frenzy.adapters.k8s.pod_overlay import Overlay, Privilege, When, overlaid
from frenzy.adapters.k8s.pod_rules import PodRules, parse_pod_rules
from frenzy.core.values.errors import SpecError

ONE = spec(A100, node("gpu-1", A100, 2))
TWO = spec(A100, node("gpu-1", A100, 2), node("gpu-2", A100, 2))


def rules(**overlay: Any) -> PodRules:
    return parse_pod_rules(f"{PLAIN}overlays: {json.dumps([overlay])}")


def trainer(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


def helper(kind: str = "containers", **fields: Any) -> dict[str, Any]:
    return {"spec": {kind: [{"name": "helper", "image": "helper:1", **fields}]}}


def refusals(**overlay: Any) -> str:
    with pytest.raises(SpecError) as refused:
        rules(**overlay)
    return str(refused.value)


# for whom


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"gpu_types": ["a100-80", "h100"]}, True),
        ({"gpu_types": ["h100"]}, False),
        ({"queues": ["night"]}, True),
        ({"queues": ["day"]}, False),
        ({"multi_node": False}, True),
        ({"multi_node": True}, False),
        ({"gpu_types": ["a100-80"], "queues": ["day"]}, False),
    ],
)
def test_an_overlay_is_for_the_gpu_types_queues_and_sizes_that_it_names(when: dict[str, Any], holds: bool) -> None:
    (pod,) = pods_of(ONE, rules(when=when, patch={"spec": {"priorityClassName": "urgent"}}))
    assert pod["spec"].get("priorityClassName") == ("urgent" if holds else None)


def test_network_devices_are_requested_for_each_gpu_of_the_pod() -> None:
    first, second = pods_of(TWO, rules(when={"multi_node": True}, resources_per_gpu={"rdma/ib": 4}))
    for pod in (first, second):
        resources = container(pod)["resources"]
        assert resources["limits"]["rdma/ib"] == resources["requests"]["rdma/ib"] == "8"


# how it is merged


def test_entries_of_one_name_are_merged_and_others_added() -> None:
    (plain,) = pods_of(ONE, parse_pod_rules(PLAIN))
    patch = trainer(env=[{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "NCCL_IB_HCA", "value": "mlx5"}])
    (pod,) = pods_of(ONE, rules(patch=patch))
    before, after = ({each["name"]: each for each in container(each)["env"]} for each in (plain, pod))
    assert after == {
        **before,
        "NCCL_DEBUG": {"name": "NCCL_DEBUG", "value": "INFO"},
        "NCCL_IB_HCA": {"name": "NCCL_IB_HCA", "value": "mlx5"},
    }


def test_a_variable_that_is_set_loses_its_other_source() -> None:
    (pod,) = pods_of(ONE, rules(patch=trainer(env=[{"name": "HF_TOKEN", "value": "none"}])))
    assert [each for each in container(pod)["env"] if each["name"] == "HF_TOKEN"] == [
        {"name": "HF_TOKEN", "value": "none"}
    ]


def test_an_overlay_without_a_patch_changes_nothing() -> None:
    assert pods_of(ONE, rules()) == pods_of(ONE, parse_pod_rules(PLAIN))


json_values = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
documents = st.dictionaries(st.text(max_size=3), json_values, max_size=4)


@given(documents, documents)
def test_merging_takes_nothing_away_and_merging_again_changes_nothing(pod: Any, patch: Any) -> None:
    once = overlaid(pod, Overlay(patch=patch), 1)
    assert pod.keys() | patch.keys() == once.keys()
    assert overlaid(once, Overlay(patch=patch), 1) == once


# what is refused


@pytest.mark.parametrize(
    ("patch", "place", "allowed"),
    [
        (trainer(imgae="x"), "containers[0].imgae", "a field of Container"),
        ({"spec": {"hostNetwork": "yes"}}, "hostNetwork", "bool"),
        ({"spec": {"containers": {"name": "trainer"}}}, "containers", "list"),
        ({"spec": {"containers": [{"env": []}]}}, "containers[0]", "its name, by which it is found"),
        ({"spec": {"volumes": None}}, "volumes", "takes nothing away"),
        ({"spec": {"volumes": [{"name": "frenzy-shm", "$patch": "delete"}]}}, "$patch", "takes nothing away"),
    ],
)
def test_what_a_pod_does_not_have_is_refused_with_its_place(patch: dict[str, Any], place: str, allowed: str) -> None:
    said = refusals(patch=patch, allow=["host_network"])
    assert f"overlays[0].patch.spec.{place}" in said or place in said
    assert allowed in said


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"name": "mine"}},
        {"metadata": {"labels": {"frenzy.dev/run": "another"}}},
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        {"spec": {"nodeName": "gpu-7"}},
        {"spec": {"tolerations": [{"operator": "Exists"}]}},
        {"spec": {"affinity": {"nodeAffinity": {}}}},
        {"spec": {"serviceAccountName": "frenzy"}},
        {"spec": {"automountServiceAccountToken": True}},
        {"spec": {"imagePullSecrets": [{"name": "mine"}]}},
        {"spec": {"restartPolicy": "Always"}},
        trainer(image="mine:1"),
        trainer(command=["sh"]),
        trainer(args=["-c", "true"]),
        trainer(env=[{"name": "FRENZY_RUN_KEY", "value": "another"}]),
        trainer(resources={"limits": {"nvidia.com/gpu": "8"}}),
        trainer(resources={"requests": {"memory": "1Ti"}}),
        helper(resources={"limits": {"nvidia.com/gpu": "8"}}),
        helper(resources={"limits": {"amd.com/gpu": "1"}}),
        helper("initContainers", resources={"requests": {"frenzy.dev/vgpu": "1"}}),
        {"spec": {"initContainers": [{"name": "frenzy-launcher", "env": [{"name": "PYTHONPATH", "value": "/mine"}]}]}},
    ],
)
def test_what_frenzy_decides_is_closed_whatever_is_allowed(patch: dict[str, Any]) -> None:
    everything = [each.value for each in Privilege]
    assert "not in an overlay" in refusals(patch=patch, allow=everything)


@pytest.mark.parametrize(
    ("patch", "privilege"),
    [
        ({"spec": {"hostNetwork": True}}, "host_network"),
        ({"spec": {"volumes": [{"name": "dev", "hostPath": {"path": "/dev/infiniband"}}]}}, "host_path"),
        (trainer(securityContext={"capabilities": {"add": ["IPC_LOCK"]}}), "capabilities"),
        (trainer(securityContext={"privileged": True}), "security_context"),
        (trainer(securityContext={"runAsUser": 0}), "security_context"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "security_context"),
        ({"spec": {"hostPID": True}}, "security_context"),
        (trainer(securityContext={"capabilities": {"drop": ["NET_RAW"]}}), "capabilities"),
        (trainer(securityContext={"readOnlyRootFilesystem": False}), "security_context"),
        ({"spec": {"volumes": [{"name": "s", "secret": {"secretName": "others"}}]}}, "secrets"),
        ({"spec": {"volumes": [{"name": "s", "projected": {"sources": [{"secret": {"name": "others"}}]}}]}}, "secrets"),
        ({"spec": {"volumes": [{"name": "r", "persistentVolumeClaim": {"claimName": "runs"}}]}}, "run_directory"),
        (
            {"spec": {"initContainers": [{"name": "a", "image": "b", "securityContext": {"privileged": True}}]}},
            "security_context",
        ),
        (
            {"spec": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}},
            "security_context",
        ),
    ],
)
def test_what_lowers_the_security_of_pods_needs_the_administrators_word(patch: dict[str, Any], privilege: str) -> None:
    others = {each.value for each in Privilege} - {privilege}
    assert f"only with {privilege} under allow" in refusals(patch=patch, allow=sorted(others))
    assert rules(patch=patch, allow=[privilege]).overlays[0].patch == patch


TIGHT = {
    "allowPrivilegeEscalation": False,
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.mark.parametrize(
    "patch",
    [
        helper(securityContext=TIGHT),
        trainer(securityContext=TIGHT),
        {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}},
    ],
)
def test_what_tightens_the_security_of_pods_and_other_claims_need_no_word(patch: dict[str, Any]) -> None:
    assert rules(patch=patch).overlays[0].patch == patch


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_container_that_is_added_is_as_secure_as_the_workers_but_for_what_it_says(kind: str) -> None:
    def context_of(own: dict[str, Any]) -> Any:
        (pod,) = pods_of(
            ONE, rules(patch=helper(kind, securityContext=own), allow=["capabilities", "security_context"])
        )
        (found,) = (each for each in pod["spec"][kind] if each["name"] == "helper")
        return found["securityContext"]

    (plain,) = pods_of(ONE, parse_pod_rules(PLAIN))
    ours = container(plain)["securityContext"]
    assert ours["capabilities"] == {"drop": ["ALL"]}
    assert context_of({}) == ours
    assert context_of({"readOnlyRootFilesystem": False}) == {**ours, "readOnlyRootFilesystem": False}
    assert context_of({"privileged": True}) == {"privileged": True}


def test_volumes_and_places_that_pods_have_are_not_taken_again() -> None:
    assert "names are unique" in refusals(patch={"spec": {"volumes": [{"name": "frenzy-shm", "emptyDir": {}}]}})
    mount = {"name": "mine", "mountPath": "/dev/shm"}  # noqa: S108
    assert "mounted already" in refusals(patch=trainer(volumeMounts=[mount]))


def test_gpus_are_no_devices_of_an_overlay() -> None:
    assert "GPUs are the plan's" in refusals(resources_per_gpu={"nvidia.com/gpu": 1})


def test_a_field_that_an_overlay_does_not_have_is_refused_with_those_that_it_has() -> None:
    assert "resources_per_gpu" in refusals(resources_for_gpu={"rdma/ib": 1})
    assert When().holds(gpu_type="any", queue="any", num_nodes=3)
