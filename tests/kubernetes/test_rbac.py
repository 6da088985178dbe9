"""What is installed, and what our service account may not do, asked of the API server itself.

What the account may is used by the other tests.
"""

from __future__ import annotations

import pytest
import yaml
from kubernetes import client, utils
from tests.kubernetes.pods import gpu_pod

from frenzy.settings import CHECKOUT


@pytest.mark.parametrize(
    ("verb", "resource", "subresource"),
    [
        ("get", "secrets", ""),
        ("list", "secrets", ""),
        ("get", "configmaps", ""),
        ("create", "pods", "exec"),
        ("create", "pods", "attach"),
        ("create", "pods", "portforward"),
        ("patch", "pods", ""),
        ("update", "pods", ""),
        ("deletecollection", "pods", ""),
        ("create", "serviceaccounts", "token"),
        ("create", "namespaces", ""),
        ("patch", "nodes", ""),
        ("delete", "nodes", ""),
        ("impersonate", "users", ""),
    ],
)
def test_our_account_may_not(
    our_api: client.CoreV1Api, kube_namespace: str, verb: str, resource: str, subresource: str
) -> None:
    asked = {"namespace": kube_namespace, "verb": verb, "resource": resource, "subresource": subresource}
    reviews = client.AuthorizationV1Api(our_api.api_client)
    answer = reviews.create_self_subject_access_review({"spec": {"resourceAttributes": asked}})
    assert answer.status.allowed is False


def test_no_pod_is_made_or_ended_in_another_namespace(our_api: client.CoreV1Api, kube_namespace: str) -> None:
    for call in (
        lambda: our_api.create_namespaced_pod("default", gpu_pod("one")),
        lambda: our_api.delete_namespaced_pod("one", "default"),
        lambda: our_api.read_namespaced_pod_log("one", "default"),
    ):
        with pytest.raises(client.ApiException) as refused:
            call()
        assert refused.value.status == 403


@pytest.mark.parametrize("file", sorted(path.name for path in (CHECKOUT / "deploy/kubernetes").iterdir()))
def test_the_api_server_accepts_every_object_of_the_deployment(
    core_api: client.CoreV1Api, kube_namespace: str, file: str
) -> None:
    for each in yaml.safe_load_all((CHECKOUT / "deploy/kubernetes" / file).read_text(encoding="utf-8")):
        if "namespace" in each["metadata"]:
            each["metadata"]["namespace"] = kube_namespace
        utils.create_from_dict(core_api.api_client, each, dry_run="All", field_validation="Strict")
