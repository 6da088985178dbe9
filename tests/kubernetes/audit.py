"""What the API server was asked, by whom: its own audit log, for calls by service accounts of the tests."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

_OWN_COMPONENTS: Final = {
    "level": "None",
    "userGroups": ["system:masters", "system:nodes", "system:serviceaccounts:kube-system"],
}
_OWN_USERS: Final = {
    "level": "None",
    "users": ["system:kube-scheduler", "system:kube-controller-manager", "system:apiserver"],
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Call:
    """One kind of call; ``is_namespaced`` tells a list in one namespace from one across the cluster."""

    verb: str
    resource: str
    is_namespaced: bool

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'' if self.is_namespaced else ' (cluster)'}"


def write_policy(path: Path) -> Path:
    """Note every call but those of Kubernetes' own components and of the tests' administrator, without contents."""
    rules = [_OWN_COMPONENTS, _OWN_USERS, {"level": "Metadata"}]
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
    path.write_text(yaml.safe_dump(policy), encoding="utf-8")
    return path


def calls(audit_log: Path, namespace: str, service_account: str) -> Counter[Call]:
    """How often the account made each kind of call; a watch counts once, when it begins."""
    user = f"system:serviceaccount:{namespace}:{service_account}"
    found: Counter[Call] = Counter()
    with audit_log.open(encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            if event["user"]["username"] == user and _counts(event["verb"], event["stage"]):
                found[_call(event["verb"], event.get("objectRef") or {})] += 1
    return found


def _counts(verb: str, stage: str) -> bool:
    return stage == ("ResponseStarted" if verb == "watch" else "ResponseComplete")


def _call(verb: str, asked: dict[str, str]) -> Call:
    parts = (asked.get("resource", "(none)"), asked.get("subresource"))
    return Call(verb=verb, resource="/".join(filter(None, parts)), is_namespaced="namespace" in asked)
