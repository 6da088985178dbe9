"""Ways into the cluster with less than the administrator's rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kubernetes import client
from tests.contract.eventually import eventually
from tests.kubernetes.certificates import Trust, trusted_by, write_kubeconfig
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.fake_node import GPU, gpu_nodes

from frenzy.adapters.k8s.inventory.devices import VIRTUAL_GPU
from frenzy.adapters.k8s.labels import GPU_TYPE

_TOKEN_S: Final = 3600
# Whatever the cluster's own default is: `baseline` refuses hostPath.
_PRIVILEGED: Final = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "warn")}


def service_account_kubeconfig(cluster: ControlPlane, namespace: str, service_account: str, folder: Path) -> Path:
    """A kubeconfig that acts as ``service_account``, which is made if it is not there; it has no rights of its own."""
    core = cluster.core_api()
    _ensure(core, namespace, service_account)
    request = {"spec": {"expirationSeconds": _TOKEN_S}}
    answer = core.create_namespaced_service_account_token(service_account, namespace, request)
    host, trust = _server(cluster, folder)
    path = folder / f"{namespace}-{service_account}.kubeconfig"
    return write_kubeconfig(path, server=host, trust=trust, user={"token": answer.status.token})


def make_namespace(core: client.CoreV1Api, name: str) -> None:
    """A namespace in which pods can be created, those with a hostPath too: its default service account is there."""
    core.create_namespace({"metadata": {"name": name, "labels": _PRIVILEGED}})
    eventually(lambda: _exists(core, name, "default"))


def _ensure(core: client.CoreV1Api, namespace: str, service_account: str) -> None:
    if not _exists(core, namespace, service_account):
        core.create_namespaced_service_account(namespace, {"metadata": {"name": service_account}})


def _exists(core: client.CoreV1Api, namespace: str, service_account: str) -> bool:
    try:
        core.read_namespaced_service_account(service_account, namespace)
    except client.ApiException as error:
        if error.status == 404:
            return False
        raise
    return True


def _server(cluster: ControlPlane, folder: Path) -> tuple[str, Trust]:
    """The server's address, and why it is trusted: by an authority, by those of the system, or without asking."""
    configuration = cluster.api_client().configuration
    if not configuration.verify_ssl:
        return str(configuration.host), {"insecure-skip-tls-verify": True}
    if configuration.ssl_ca_cert is None:
        return str(configuration.host), {}
    authority = folder / "authority.crt"
    authority.write_bytes(Path(configuration.ssl_ca_cert).read_bytes())
    return str(configuration.host), trusted_by(authority)


def give_gpus(core: client.CoreV1Api, node: str, *, product: str = "NVIDIA-A100-SXM4-80GB", count: int = 8) -> None:
    """Let a real node say that it has GPUs: labels as discovery sets them, and a number to be counted down."""
    labels = gpu_nodes(node, 1, product=product, memory_mib=81920, gpus=count)[0].labels
    core.patch_node(node, {"metadata": {"labels": dict(labels)}})
    core.patch_node_status(node, {"status": {"capacity": {GPU: str(count)}, "allocatable": {GPU: str(count)}}})


@contextmanager
def virtual_gpus(core: client.CoreV1Api, node: str, gpu_type: str, *, count: int) -> Iterator[None]:
    """A real node as an administrator would declare virtual GPUs on it, for the length of the block; no others."""
    numbers = {GPU: None, VIRTUAL_GPU: str(count)}
    core.patch_node_status(node, {"status": {"capacity": numbers, "allocatable": numbers}})
    core.patch_node(node, {"metadata": {"labels": {GPU_TYPE: gpu_type}}})
    yield
    core.patch_node(node, {"metadata": {"labels": {GPU_TYPE: None}}})
    core.patch_node_status(node, {"status": {"capacity": {VIRTUAL_GPU: None}, "allocatable": {VIRTUAL_GPU: None}}})


def may_make_nodes(cluster: ControlPlane) -> bool:
    """Whether the kubeconfig's user may play kubelets: create nodes and write their status and their pods'."""
    wanted = (("create", "nodes", ""), ("patch", "nodes", "status"), ("patch", "pods", "status"))
    with cluster.api_client() as api:
        reviews = client.AuthorizationV1Api(api)
        return all(_is_allowed(reviews, *each) for each in wanted)


def _is_allowed(reviews: client.AuthorizationV1Api, verb: str, resource: str, subresource: str) -> bool:
    asked = {"verb": verb, "resource": resource, "subresource": subresource}
    answer = reviews.create_self_subject_access_review({"spec": {"resourceAttributes": asked}})
    return bool(answer.status.allowed)
