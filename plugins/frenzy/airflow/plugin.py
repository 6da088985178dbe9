"""What Airflow loads: the API and pages, and where the pages hang in its UI.

The app is made in the API server's process only: other components load plugins too, and
FastAPI would cost each of them start-up time and memory.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from frenzy.airflow import preload
from frenzy.api import URL_PREFIX
from frenzy.web.mount import external_views, serves_api


def api_app() -> dict[str, Any]:
    """The FastAPI app in the form Airflow mounts; imports what only the server needs."""
    from frenzy.airflow.audit import note_act
    from frenzy.airflow.dags import ensure_loaders
    from frenzy.airflow.form_check import check_forms
    from frenzy.airflow.person import airflow_person
    from frenzy.settings import CHECKOUT, load_settings
    from frenzy.web.application import create_app
    from frenzy.web.model_reader import ModelReader
    from frenzy.wiring import services

    settings = load_settings(os.environ)
    ensure_loaders(settings.jobs_folder)
    check_forms()
    models = ModelReader(folders=(settings.dags_folder.parent, CHECKOUT), cache_folder=settings.cache_folder)
    return {
        "app": create_app(services, airflow_person, on_job_changed=parse_soon, on_act=note_act, models=models),
        "url_prefix": URL_PREFIX,
        "name": "Frenzy",
    }


def parse_soon(job_name: str) -> None:
    """Have the DAG processor look at the job's spec now rather than at its next round."""
    from frenzy.adapters.files.job_store import shard_of
    from frenzy.airflow.dags import loader_of, request_parse
    from frenzy.settings import load_settings

    folder = load_settings(os.environ).jobs_folder / shard_of(job_name)
    request_parse(loader_of(folder / f"{job_name}.yaml"))


def turnstile() -> list[dict[str, Any]]:
    """Before all of the embedded Airflow's API; how many requests another one's server takes is not ours to say."""
    from frenzy.cli.embedded.airflow_env import STACK_MARK
    from frenzy.web.turnstile import Turnstile, lanes_of_airflow

    if STACK_MARK not in os.environ:
        return []
    lanes = lanes_of_airflow(one_writer=conf.get("database", "sql_alchemy_conn").startswith("sqlite"))
    return [{"name": "Frenzy's turnstile", "middleware": Turnstile, "kwargs": {"lanes": lanes}}]


def listeners() -> list[Any]:
    """Hooks where people end runs and tasks, in the API server, and where tasks are forked from."""
    if serves_api(sys.argv):
        from frenzy.airflow import listener

        return [listener]
    return [preload] if preload.forks_tasks(sys.argv, conf.get("core", "executor")) else []


def task_links() -> list[Any]:
    """Made where they are asked for: in the API server."""
    from frenzy.airflow.links import run_links

    return list(run_links())


class FrenzyPlugin(AirflowPlugin):
    name = "frenzy"
    fastapi_apps = [api_app()] if serves_api(sys.argv) else []
    fastapi_root_middlewares = turnstile() if serves_api(sys.argv) else []
    external_views = external_views(conf.get("api", "base_url", fallback=""))
    operator_extra_links = task_links() if serves_api(sys.argv) else []
    listeners = listeners()
