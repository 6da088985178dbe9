"""DAGs made of stored jobs and of files, and the form. DAG files in users' folders import these names from here."""

from frenzy.airflow.dags.job_dags import (
    RefusedSpecsError,
    ensure_loaders,
    job_dag,
    job_dags_of_folder,
    job_dags_of_shard,
    loader_of,
    reconcile_dag,
    request_parse,
    sweep_dag,
)

__all__ = [
    "RefusedSpecsError",
    "ensure_loaders",
    "job_dag",
    "job_dags_of_folder",
    "job_dags_of_shard",
    "loader_of",
    "reconcile_dag",
    "request_parse",
    "sweep_dag",
]
