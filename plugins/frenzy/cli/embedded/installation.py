"""The files of a new installation, as values: what ``frenzy init`` would write."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from frenzy.settings import CHECKOUT, JOBS_BUNDLE, LauncherKind, Settings

ENVIRONMENT_FILE: Final = "frenzy.env"
DB_MANAGER: Final = "frenzy.airflow.db.FrenzyDBManager"

_CLUSTERS: Final[Mapping[LauncherKind, str]] = {
    LauncherKind.LOCAL: "include/clusters/laptop.yaml",
    LauncherKind.KUBERNETES: "include/clusters/single-node.yaml",
}
_JOB: Final = "include/jobs/tiny-shakespeare.yaml"
_PODS: Final = "include/kubernetes/pods.yaml"
_CLUSTER: Final = "include/clusters/cluster.yaml"
_LOCAL_SETTINGS: Final = '"""Airflow asks plugins for policies only when this module exists."""\n'
_LOCAL_BUNDLE: Final = "airflow.dag_processing.bundles.local.LocalDagBundle"
_HEADER: Final = """\
# Settings of this installation, made by frenzy init. Read them in each shell and for each component:
#   set -a; . {file}; set +a
# Every setting: docs/operations.md. Passwords and keys do not belong here.
"""
_OF_AIRFLOW: Final = """
# For an Airflow of your own; `frenzy up` sets these itself.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One folder's files by their path below it; ``settings`` is what its ``frenzy.env`` says."""

    folder: Path
    settings: Settings
    files: Mapping[str, str]


def new_installation(folder: Path, launcher: LauncherKind, run_root: str | None = None) -> Installation:
    """What a new installation in ``folder`` (absolute) needs; reads the package's examples, writes nothing."""
    on_kubernetes = launcher is LauncherKind.KUBERNETES
    settings = replace(
        Settings(),
        home=folder / ".frenzy",
        dags_folder=folder / "dags",
        cluster_file=folder / _CLUSTER,
        pod_rules_file=folder / _PODS if on_kubernetes else Settings().pod_rules_file,
        launcher=launcher,
        run_root=run_root or str(folder / ".frenzy/runs"),
    )
    dags = {f"dags/{each.name}": _text(each) for each in sorted((CHECKOUT / "dags").glob("*.py"))}
    pods = {_PODS: _text(CHECKOUT / _PODS)} if on_kubernetes else {}
    files = {
        ENVIRONMENT_FILE: _environment(folder, settings),
        _CLUSTER: _text(CHECKOUT / _CLUSTERS[launcher]),
        **pods,
        _JOB: _text(CHECKOUT / _JOB),
        **dags,
        "config/airflow_local_settings.py": _LOCAL_SETTINGS,
    }
    return Installation(folder=folder, settings=settings, files=files)


def airflow_variables(folder: Path, settings: Settings) -> dict[str, str]:
    """What an Airflow that has ``folder`` as its home needs to know of Frenzy."""
    return {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": DB_MANAGER,
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(dag_bundles(settings)),
    }


def chosen(settings: Settings) -> dict[str, str]:
    """Every variable whose value is not the default."""
    default = Settings().environment()
    return {name: value for name, value in settings.environment().items() if value != default.get(name)}


def dag_bundles(settings: Settings) -> list[dict[str, object]]:
    """Airflow's DAG bundles: the DAG folder, and the stored jobs, which appear within seconds."""
    folders = {"frenzy-dags": (settings.dags_folder, 30), JOBS_BUNDLE: (settings.jobs_folder, 5)}
    return [
        {"name": name, "classpath": _LOCAL_BUNDLE, "kwargs": {"path": str(folder), "refresh_interval": interval_s}}
        for name, (folder, interval_s) in folders.items()
    ]


def _environment(folder: Path, settings: Settings) -> str:
    header = _HEADER.format(file=shlex.quote(str(folder / ENVIRONMENT_FILE)))
    return header + _lines(chosen(settings)) + _OF_AIRFLOW + _lines(airflow_variables(folder, settings))


def _lines(variables: Mapping[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
