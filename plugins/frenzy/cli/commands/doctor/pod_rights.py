"""What Kubernetes lets this account do: the rights that deploy/kubernetes/rbac.yaml gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from frenzy.cli.commands.doctor.findings import Finding, checked, ok, problem, warning
from frenzy.settings import Settings

# resource: verbs; of pods in the namespace of the pod rules, of nodes everywhere.
NEEDED: Final = {
    "pods": ("create", "delete", "get", "list", "watch"),
    "pods/log": ("get",),
    "events": ("list",),
}
OF_NODES: Final = ("get", "list", "watch")
_REMEDY: Final = "kubectl apply -f deploy/kubernetes/rbac.yaml, with the namespaces of this installation."

Ask = Callable[[str, str, str | None], bool]


def findings(settings: Settings) -> Iterator[Finding]:
    """Of the account by which this process reaches the cluster."""
    from frenzy.wiring import pod_rules

    def look() -> Iterator[Finding]:
        yield from rights(_asking(settings), pod_rules(settings).namespace)

    yield from checked("rbac", look, "Set KUBECONFIG, or make the Connection that FRENZY_KUBERNETES_CONN_ID names.")


def rights(may: Ask, namespace: str) -> Iterator[Finding]:
    """may: whether the account may do (verb, resource, namespace or None for all)."""
    wanted = [(verb, resource) for resource, verbs in NEEDED.items() for verb in verbs]
    lacking = [f"{verb} {resource}" for verb, resource in wanted if not may(verb, resource, namespace)]
    if lacking:
        yield problem("rbac", f"In {namespace} it may not {', '.join(lacking)}.", _REMEDY)
    else:
        yield ok("rbac", f"all that workers need in {namespace}")
    blind = [verb for verb in OF_NODES if not may(verb, "nodes", None)]
    if blind:
        detail = f"It may not {', '.join(blind)} nodes: the cluster file is believed instead."
        yield warning("rbac", detail, _REMEDY)


def _asking(settings: Settings) -> Ask:
    from kubernetes import client
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
    from frenzy.wiring import kubernetes_api

    api = client.AuthorizationV1Api(kubernetes_api(settings.kubernetes_conn_id).api_client)

    def may(verb: str, resource: str, namespace: str | None) -> bool:
        name, _, sub = resource.partition("/")
        wanted = client.V1ResourceAttributes(verb=verb, resource=name, subresource=sub or None, namespace=namespace)
        spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=wanted)
        try:
            review: Any = api.create_self_subject_access_review(client.V1SelfSubjectAccessReview(spec=spec))
        except (ApiException, HTTPError) as error:
            reason = Reason(code=ReasonCode.API_UNREACHABLE, detail=f"Kubernetes does not answer: {error}")
            raise TemporaryError(reason) from error
        return bool(review.status.allowed)

    return may
