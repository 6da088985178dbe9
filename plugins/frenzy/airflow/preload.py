"""What Frenzy's tasks import, imported once where the LocalExecutor forks them from: in the scheduler.

Nothing here may start a thread or read a setting: a fork takes no thread along, and settings are each task's to ask
for. That leaves numpy, pyarrow and torch out, which no task needs to start a training.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from airflow.listeners import hookimpl

MODULES: Final = (
    "frenzy.adapters.airflow_calls",
    "frenzy.adapters.source_settings",
    "frenzy.adapters.spec.job_paths",
    "frenzy.adapters.spec.script_content",
    "frenzy.adapters.traced_config",
    "frenzy.airflow.dags",
    "frenzy.airflow.secret_texts",
    "frenzy.airflow.tasks.evaluation",
    "frenzy.airflow.tasks.lineage",
    "frenzy.airflow.tasks.preparation",
    "frenzy.airflow.tasks.profile",
    "frenzy.airflow.tasks.reconcile",
    "frenzy.airflow.tasks.settle",
    "frenzy.airflow.tasks.starting",
    "frenzy.airflow.tasks.statistics",
    "frenzy.airflow.triggers.triggers",
    "frenzy.airflow.triggers.until_prepared",
    "frenzy.cli.render.plan_tables",
    "frenzy.trainer.data.data_facts",
    "frenzy.trainer.guarded",
    "frenzy.wiring",
    "fsspec.implementations.local",
)


def forks_tasks(argv: Sequence[str], executor: str) -> bool:
    """Whether tasks are forks of the process that was started with ``argv``. executor: Airflow's setting."""
    return "scheduler" in argv[1:2] and "LocalExecutor" in executor


@hookimpl
def on_starting(component: Any) -> None:
    """Called by the scheduler before it makes its executor's processes; again in each task, where all is there."""
    for each in MODULES:
        import_module(each)
    from frenzy.adapters.api_client import ApiAddress, ApiClient
    from frenzy.adapters.spec.fields import job_schema

    job_schema()  # kept; what reads a specification needs it
    # Certificates are read, and what httpx imports for its first client.
    ApiClient(ApiAddress(base_url="http://localhost", login="", password="")).close()
