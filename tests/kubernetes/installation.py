"""The roles of `deploy/kubernetes/rbac.yaml`, and of `executor.yaml` beside it, installed for one test."""

from __future__ import annotations

from typing import Any, Final

import yaml
from kubernetes import client

from frenzy.settings import CHECKOUT

ACCOUNT: Final = "frenzy"


class Installation:
    """Our roles in namespaces of the test, with names of their own where they are the cluster's.

    namespace: of the trainers' pods. airflow: of Airflow, hence of the service account; the same unless it is given.
    """

    def __init__(self, api: client.ApiClient, namespace: str, *, airflow: str | None = None) -> None:
        self._rights, self._namespace = client.RbacAuthorizationV1Api(api), namespace
        self._places = {"frenzy-jobs": namespace, "frenzy": airflow or namespace}
        self._made: list[tuple[str, str]] = []

    def install(self, file: str = "rbac.yaml", *, without: tuple[str, ...] = ()) -> None:
        text = (CHECKOUT / "deploy/kubernetes" / file).read_text(encoding="utf-8")
        for each in yaml.safe_load_all(text):
            if each["metadata"]["name"] not in without and each["kind"] not in ("Namespace", "ServiceAccount"):
                self._put(each)

    def _put(self, given: dict[str, Any]) -> None:
        kind, metadata = given["kind"], given["metadata"]
        for subject in given.get("subjects", ()):
            subject["namespace"] = self._places[subject["namespace"]]
        if kind in ("Role", "RoleBinding"):
            place = metadata["namespace"] = self._places[metadata["namespace"]]
            name = {"Role": "role", "RoleBinding": "role_binding"}[kind]
            getattr(self._rights, f"create_namespaced_{name}")(place, given)
            return
        metadata["name"] += f"-{self._namespace}"
        if kind == "ClusterRoleBinding":
            given["roleRef"]["name"] += f"-{self._namespace}"
        name = {"ClusterRole": "cluster_role", "ClusterRoleBinding": "cluster_role_binding"}[kind]
        getattr(self._rights, f"create_{name}")(given)
        self._made.append((name, metadata["name"]))

    def remove(self) -> None:
        for kind, name in self._made:
            getattr(self._rights, f"delete_{kind}")(name)
