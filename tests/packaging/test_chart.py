"""What Airflow's chart makes of deploy/helm-values.yaml, held to the images and to deploy/kubernetes.

Rendered where FRENZY_TEST_HELM (the program) and FRENZY_TEST_AIRFLOW_CHART (a folder or an archive) say with what;
elsewhere the snapshot of an earlier rendering of the same values.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import yaml
from tests.script_files import load_script

from frenzy.settings import CHECKOUT

ASK_HELM = ("FRENZY_TEST_HELM", "FRENZY_TEST_AIRFLOW_CHART")
COMPONENTS = ("airflow-api-server", "airflow-dag-processor", "airflow-scheduler", "airflow-triggerer", "task")


SCRIPT = load_script(CHECKOUT / "scripts/chart_snapshot.py")
KEPT: dict[str, Any] = yaml.safe_load(SCRIPT.SNAPSHOT.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def chart() -> dict[str, Any]:
    given = [os.environ[name] for name in ASK_HELM if name in os.environ]
    return dict(SCRIPT.snapshot(*given)) if len(given) == len(ASK_HELM) else KEPT


def containers(chart: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{pod}/{name}": each for pod, spec in chart["pods"].items() for name, each in spec["containers"].items()}


def of_our_image(chart: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: each for name, each in containers(chart).items() if "/frenzy-airflow:" in each["image"]}


def documents(path: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((CHECKOUT / path).read_text(encoding="utf-8")) if each]


def test_the_snapshot_is_of_these_values(chart: dict[str, Any]) -> None:
    again = "python scripts/chart_snapshot.py HELM CHART (version 1.22.0) writes it anew"
    assert KEPT["values"] == SCRIPT.digest_of_values(), again
    assert chart == KEPT, again


def test_every_command_of_the_chart_is_in_our_image(chart: dict[str, Any]) -> None:
    """The chart's log groomers run /clean-logs of Airflow's own image: with ours their pods would never be ready."""
    dockerfile = (CHECKOUT / "docker/airflow/Dockerfile").read_text(encoding="utf-8")
    there = {*re.findall(r"^COPY [^\n]* (/\S+)$", dockerfile, re.MULTILINE)}
    ran = {name: " ".join([each["run"], *each["probes"].values()]) for name, each in of_our_image(chart).items()}
    assert len(ran) == 10
    for name, command in ran.items():
        assert {word for word in command.split() if word.startswith("/")} <= there, name


def test_every_pod_may_be_made_under_pod_security_restricted(chart: dict[str, Any]) -> None:
    for name, pod in chart["pods"].items():
        assert pod["security"]["runAsNonRoot"] is True, name
        assert pod["security"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
    for name, each in containers(chart).items():
        assert each["security"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}, name
    assert {pod["security"]["runAsUser"] for pod in chart["pods"].values()} == {1000, 65534}


def test_the_chart_grants_nobody_the_making_of_pods_or_commands_in_them(chart: dict[str, Any]) -> None:
    """What Frenzy and the KubernetesExecutor need is in deploy/kubernetes, and no more than that."""
    assert chart["rights"] == ["pods: list, get, watch", "pods/log: get, list"]


def test_every_component_has_the_account_the_volumes_and_the_settings_that_frenzy_needs(chart: dict[str, Any]) -> None:
    claims = {
        f"persistentVolumeClaim/{each['metadata']['name']}"
        for each in documents("deploy/kubernetes/volumes.yaml")
        if each["kind"] == "PersistentVolumeClaim" and each["metadata"]["namespace"] == "frenzy"
    }
    given = {each["name"]: each["value"] for each in documents("deploy/helm-values.yaml")[0]["env"]}
    for name in COMPONENTS:
        pod = chart["pods"][name]
        assert pod["service_account"] == "frenzy", name
        assert {each for each in pod["volumes"].values() if each.startswith("persistent")} == claims, name
    for name, each in of_our_image(chart).items():
        assert given.items() <= each["env"].items(), name
        assert {"/var/lib/frenzy/home", "/var/lib/frenzy/runs", "/etc/frenzy"} <= each["mounts"].keys(), name
        assert each["env"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "secret frenzy-airflow/connection", name


def test_passwords_and_the_key_of_tokens_reach_no_task(chart: dict[str, Any]) -> None:
    holders = {"FRENZY_AIRFLOW_PASSWORDS": set[str](), "AIRFLOW__API_AUTH__JWT_SECRET": set[str]()}
    for name, each in containers(chart).items():
        for variable, found in holders.items():
            found |= {name} if variable in each["env"] else set()
    assert holders == {
        "FRENZY_AIRFLOW_PASSWORDS": {"airflow-api-server/api-server"},
        "AIRFLOW__API_AUTH__JWT_SECRET": {"airflow-api-server/api-server", "airflow-scheduler/scheduler"},
    }


def test_airflows_settings_are_those_of_the_values(chart: dict[str, Any]) -> None:
    asked = documents("deploy/helm-values.yaml")[0]["config"]
    for section, options in asked.items():
        assert {name: str(value) for name, value in options.items()}.items() <= chart["settings"][section].items()
    assert chart["settings"]["core"]["executor"] == "KubernetesExecutor"
    assert chart["settings"]["core"]["execution_api_server_url"] == "http://airflow-api-server:8080/execution/"
