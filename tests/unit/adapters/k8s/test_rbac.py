"""The rights that are handed out are those that the code uses, no more and no less."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from frenzy.adapters.k8s import labels
from frenzy.adapters.k8s.pod_rules import load_pod_rules
from frenzy.settings import CHECKOUT

RBAC = list(yaml.safe_load_all((CHECKOUT / "deploy/kubernetes/rbac.yaml").read_text(encoding="utf-8")))
PODS = load_pod_rules(CHECKOUT / "include/kubernetes/pods.yaml", stop_grace_s=30)
PACKAGE = CHECKOUT / "plugins/frenzy"
VERBS = {"create": "create", "read": "get", "list": "list", "delete": "delete", "patch": "patch", "replace": "update"}
# In whose name a call of the client is made: resource, and whether in one namespace.
RESOURCES = {
    "namespaced_pod": ("pods", True),
    "namespaced_pod_log": ("pods/log", True),
    "namespaced_event": ("events", True),
    "pod_for_all_namespaces": ("pods", False),
    "node": ("nodes", False),
    "resource_slice": ("resourceslices", False),
    "resource_claim_for_all_namespaces": ("resourceclaims", False),
    "device_class": ("deviceclasses", False),
}

OF_DEVICES = {"resourceslices", "resourceclaims", "deviceclasses"}

Rights = set[tuple[str, str]]


def used() -> Iterator[tuple[str, str, bool]]:
    """(resource, verb, in one namespace) of every call of Kubernetes' client in the package."""
    for path in PACKAGE.rglob("*.py"):
        yield from _used_in(path)


def _used_in(path: Path) -> Iterator[tuple[str, str, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    watches = any(isinstance(each, ast.Name) and each.id == "Listing" for each in ast.walk(tree))
    for each in ast.walk(tree):
        if not isinstance(each, ast.Attribute):
            continue
        verb, _, resource = each.attr.partition("_")
        if verb in VERBS and resource in RESOURCES:
            name, namespaced = RESOURCES[resource]
            yield name, VERBS[verb], namespaced
            if verb == "list" and watches and name != "events":
                yield name, "watch", namespaced


def granted(*kinds: str) -> Rights:
    roles = [each for each in RBAC if each["kind"] in kinds]
    rules = [rule for role in roles for rule in role["rules"]]
    groups = [["resource.k8s.io"] if OF_DEVICES & set(rule["resources"]) else [""] for rule in rules]
    assert [rule["apiGroups"] for rule in rules] == groups
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def test_the_cluster_roles_grant_what_is_used_across_the_cluster() -> None:
    assert granted("ClusterRole") == {(resource, verb) for resource, verb, namespaced in used() if not namespaced}


def test_the_role_grants_what_is_used_in_the_namespace() -> None:
    assert granted("Role") == {(resource, verb) for resource, verb, namespaced in used() if namespaced}


def test_no_right_is_a_wildcard_and_cluster_wide_rights_only_read() -> None:
    assert not any("*" in each for right in granted("Role", "ClusterRole") for each in right)
    assert {verb for _, verb in granted("ClusterRole")} == {"get", "list", "watch"}
    assert {resource for resource, _ in granted("Role")} == {"pods", "pods/log", "events"}


def test_every_role_is_bound_to_airflows_service_account_alone() -> None:
    (account,) = [each["metadata"] for each in RBAC if each["kind"] == "ServiceAccount"]
    bindings = [each for each in RBAC if each["kind"].endswith("Binding")]
    bound = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings}
    assert bound == {(each["kind"], each["metadata"]["name"]) for each in RBAC if each["kind"].endswith("Role")}
    assert all(each["subjects"] == [{"kind": "ServiceAccount", **account}] for each in bindings)


# apart from Airflow


def named(kind: str) -> dict[tuple[str | None, str], dict[str, Any]]:
    """Objects of the folder by namespace and name."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((CHECKOUT / "deploy/kubernetes").iterdir())]
    found = [each for text in texts for each in yaml.safe_load_all(text) if each["kind"] == kind]
    return {(each["metadata"].get("namespace"), each["metadata"]["name"]): each for each in found}


def test_trainers_are_in_a_namespace_apart_from_airflows_secrets_and_without_a_token() -> None:
    """A reference k8s:secret/key reaches any Secret of the namespace that the pod is in."""
    (airflow,) = [each["metadata"]["namespace"] for each in RBAC if each["kind"] == "ServiceAccount"]
    assert PODS.namespace != airflow
    assert set(named("Namespace")) == {(None, airflow), (None, PODS.namespace)}
    assert named("ServiceAccount")[PODS.namespace, PODS.service_account]["automountServiceAccountToken"] is False
    roles = {kind: {each for each in named(kind) if each[0] != PODS.namespace} for kind in ("Role", "RoleBinding")}
    assert roles["Role"] == roles["RoleBinding"] == {(airflow, "frenzy-executor")}


def test_no_role_lets_anybody_run_commands_in_pods_or_read_secrets() -> None:
    rules = [rule for kind in ("Role", "ClusterRole") for role in named(kind).values() for rule in role["rules"]]
    assert not {each for rule in rules for each in rule["resources"]} & {"pods/exec", "pods/attach", "secrets", "*"}


def test_the_trainers_namespace_admits_no_pod_that_pod_security_calls_unsafe() -> None:
    known = named("Namespace")[None, PODS.namespace]["metadata"]["labels"]
    assert known["pod-security.kubernetes.io/enforce"] == "restricted"
    assert not [each for each in PODS.volumes if each.host_path is not None]


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "fd00:ec2::254", "10.96.0.1", "172.20.0.1", "192.168.1.1", "100.100.100.200", "fe80::1"],
)
def test_trainers_are_kept_from_metadata_and_from_private_addresses(address: str) -> None:
    blocks = [
        each["ipBlock"]
        for policy in named("NetworkPolicy").values()
        for rule in policy["spec"].get("egress", ())
        for each in rule["to"]
        if "ipBlock" in each
    ]
    wanted = ip_address(address)
    for each in blocks:
        inside = wanted in ip_network(each["cidr"])
        assert not inside or any(wanted in ip_network(known) for known in each["except"])


def test_trainers_and_nobody_else_call_trainers() -> None:
    trainers = {"podSelector": {"matchLabels": {labels.NAME: labels.TRAINER}}}
    policies = [each["spec"] for each in named("NetworkPolicy").values()]
    assert {namespace for namespace, _ in named("NetworkPolicy")} == {PODS.namespace}
    assert [rule["from"] for each in policies for rule in each.get("ingress", ())] == [[trainers]]
    assert sorted(kind for each in policies for kind in each["policyTypes"]) == ["Egress", "Ingress"]
    assert all(each["podSelector"] == {} for each in policies)


def test_both_namespaces_have_a_claim_on_the_same_share() -> None:
    assert PODS.run_directory is not None
    volumes, claims = named("PersistentVolume"), named("PersistentVolumeClaim")
    ends = [key for key in claims if key[1] == PODS.run_directory.claim]
    assert len(ends) == 2 and PODS.namespace in dict(ends)
    bound = [volumes[None, claims[key]["spec"]["volumeName"]]["spec"] for key in ends]
    assert [(each["claimRef"]["namespace"], each["claimRef"]["name"]) for each in bound] == ends
    assert bound[0]["nfs"] == bound[1]["nfs"]
    for key, volume in zip(ends, bound, strict=True):
        claim = claims[key]["spec"]
        assert claim["storageClassName"] == volume["storageClassName"] == ""
        assert claim["accessModes"] == volume["accessModes"] == ["ReadWriteMany"]
        assert claim["resources"]["requests"] == volume["capacity"]
