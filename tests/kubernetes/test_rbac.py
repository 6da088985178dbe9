"""What our service account may not do, asked of the API server itself. What it may is used by the other tests."""

from __future__ import annotations

import pytest
from kubernetes import client
from tests.kubernetes.pods import gpu_pod


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
