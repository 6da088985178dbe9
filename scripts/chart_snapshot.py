"""What deploy/helm-values.yaml makes of Airflow's chart, as far as we depend on it: tests/data/chart/objects.yaml.

    python scripts/chart_snapshot.py HELM CHART     write it; HELM: the program, CHART: a folder or an archive

Helm takes no part otherwise: tests hold the snapshot to the values, to the images and to deploy/kubernetes.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

CHECKOUT: Final = Path(__file__).parents[1]
VALUES: Final = CHECKOUT / "deploy/helm-values.yaml"
SNAPSHOT: Final = CHECKOUT / "tests/data/chart/objects.yaml"
_HEADER: Final = "# Made by scripts/chart_snapshot.py; do not edit by hand.\n"

Manifest = Mapping[str, Any]


def main(helm: str, chart: str) -> None:
    SNAPSHOT.parent.mkdir(exist_ok=True)
    SNAPSHOT.write_text(_HEADER + yaml.safe_dump(snapshot(helm, chart), width=120), encoding="utf-8")


def snapshot(helm: str, chart: str) -> dict[str, Any]:
    """What the chart makes of the values, and which values they were."""
    command = (helm, "template", "airflow", chart, "--namespace", "frenzy", "--values", str(VALUES))
    rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = [each for each in yaml.safe_load_all(rendered) if each]
    return {"chart": _version(helm, chart), "values": digest_of_values(), **described(objects)}


def digest_of_values() -> str:
    """Of what the file says, whatever its comments."""
    given = json.dumps(yaml.safe_load(VALUES.read_text(encoding="utf-8")), sort_keys=True)
    return hashlib.sha256(given.encode()).hexdigest()


def _version(helm: str, chart: str) -> str:
    shown = subprocess.run((helm, "show", "chart", chart), capture_output=True, text=True, check=True).stdout
    return str(yaml.safe_load(shown)["version"])


def described(objects: list[Manifest]) -> dict[str, Any]:
    """Pods, rights and Airflow's settings among ``objects``."""
    files = next(each["data"] for each in objects if each["metadata"]["name"] == "airflow-config")
    pods = {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in objects if "template" in _spec(each)}
    pods["task"] = yaml.safe_load(files["pod_template_file.yaml"])["spec"]
    settings = configparser.ConfigParser(interpolation=None)
    settings.read_string(files["airflow.cfg"])
    return {
        "pods": {name: _pod(pod) for name, pod in pods.items()},
        "rights": [
            _right(rule) for each in objects if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]
        ],
        "settings": {section: dict(settings[section]) for section in settings.sections()},
    }


def _spec(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest.get("spec", {})
    return spec


def _right(rule: Manifest) -> str:
    return f"{', '.join(rule['resources'])}: {', '.join(rule['verbs'])}"


def _pod(spec: Manifest) -> dict[str, Any]:
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return {
        "service_account": spec["serviceAccountName"],
        "service_links": spec.get("enableServiceLinks", True),
        "security": spec["securityContext"],
        "volumes": {each["name"]: _source(each) for each in spec["volumes"]},
        "containers": {each["name"]: _container(each) for each in containers},
    }


def _source(volume: Manifest) -> str:
    kinds = {"persistentVolumeClaim": "claimName", "configMap": "name", "secret": "secretName"}
    return next((f"{kind}/{volume[kind][key]}" for kind, key in kinds.items() if kind in volume), "emptyDir")


def _container(spec: Manifest) -> dict[str, Any]:
    probes = {name: " ".join(probe["exec"]["command"]) for name, probe in spec.items() if "exec" in _exec(probe)}
    return {
        "image": spec["image"],
        "run": " ".join([*(spec.get("command") or ()), *(spec.get("args") or ())]),
        "probes": probes,
        "security": spec["securityContext"],
        "resources": spec["resources"],
        "env": dict(sorted(_variables(spec))),
        "mounts": {each["mountPath"]: each["name"] for each in spec["volumeMounts"]},
    }


def _exec(probe: object) -> Mapping[str, Any]:
    return probe if isinstance(probe, dict) else {}


def _variables(container: Manifest) -> Iterator[tuple[str, str]]:
    for each in container.get("env") or ():
        secret = each.get("valueFrom", {}).get("secretKeyRef")
        yield each["name"], f"secret {secret['name']}/{secret['key']}" if secret else str(each.get("value"))


if __name__ == "__main__":
    main(*sys.argv[1:])
