"""The way to a cluster: a kubeconfig, else a pod's own account, else words that help."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes.config import incluster_config, kube_config

from frenzy.adapters.k8s.client import core_api
from frenzy.core.errors import PermanentError

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://cluster.example:6443"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


@pytest.fixture(autouse=True)
def nothing_to_find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nowhere"))


def test_a_kubeconfig_is_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG, encoding="utf-8")
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    assert core_api().api_client.configuration.host == "https://cluster.example:6443"


def test_inside_a_cluster_the_pods_own_account_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("secret", encoding="utf-8")
    authority.write_text("certificate", encoding="utf-8")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    assert core_api().api_client.configuration.host == "https://10.96.0.1:443"


def test_without_either_it_says_what_to_set() -> None:
    with pytest.raises(PermanentError, match="KUBECONFIG"):
        core_api()
