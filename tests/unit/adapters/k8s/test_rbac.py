"""The rights that are handed out are those that the code uses, no more and no less."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

from frenzy.settings import CHECKOUT

RBAC = list(yaml.safe_load_all((CHECKOUT / "deploy/kubernetes/rbac.yaml").read_text(encoding="utf-8")))
PACKAGE = CHECKOUT / "plugins/frenzy"
VERBS = {"create": "create", "read": "get", "list": "list", "delete": "delete", "patch": "patch", "replace": "update"}
# In whose name a call of the client is made: resource, and whether in one namespace.
RESOURCES = {
    "namespaced_pod": ("pods", True),
    "namespaced_pod_log": ("pods/log", True),
    "namespaced_event": ("events", True),
    "pod_for_all_namespaces": ("pods", False),
    "node": ("nodes", False),
}

Rights = set[tuple[str, str]]


def used() -> Iterator[tuple[str, str, bool]]:
    """(resource, verb, in one namespace) of every call of Kubernetes' client in the package."""
    for path in PACKAGE.rglob("*.py"):
        yield from _used_in(path)


def _used_in(path: Path) -> Iterator[tuple[str, str, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    watches = any(isinstance(each, ast.keyword) and each.arg == "watch" for each in ast.walk(tree))
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
    assert all(rule["apiGroups"] == [""] for rule in rules)
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def test_the_cluster_roles_grant_what_is_used_across_the_cluster() -> None:
    assert granted("ClusterRole") == {(resource, verb) for resource, verb, namespaced in used() if not namespaced}


def test_the_role_grants_what_is_used_in_the_namespace() -> None:
    assert granted("Role") == {(resource, verb) for resource, verb, namespaced in used() if namespaced}


def test_no_right_is_a_wildcard_and_cluster_wide_rights_only_read() -> None:
    assert not any("*" in each for right in granted("Role", "ClusterRole") for each in right)
    assert {verb for _, verb in granted("ClusterRole")} == {"get", "list", "watch"}
    assert {resource for resource, _ in granted("Role")} == {"pods", "pods/log", "events"}


def test_every_role_is_bound_to_the_one_service_account() -> None:
    (account,) = [each["metadata"] for each in RBAC if each["kind"] == "ServiceAccount"]
    bindings = [each for each in RBAC if each["kind"].endswith("Binding")]
    bound = {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings}
    assert bound == {(each["kind"], each["metadata"]["name"]) for each in RBAC if each["kind"].endswith("Role")}
    assert all(each["subjects"] == [{"kind": "ServiceAccount", **account}] for each in bindings)
