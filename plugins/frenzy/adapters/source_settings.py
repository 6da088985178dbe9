"""What Airflow's processes may read for users, as settings and this machine say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from frenzy.core.values.sources import SourceRules
from frenzy.settings import CHECKOUT, Settings

# What Airflow itself keeps in AIRFLOW_HOME.
_SECRETS_OF_AIRFLOW: Final = (
    *("dags", "airflow.cfg", "airflow.db", "airflow.db-wal", "airflow.db-shm", "config", "logs", "secrets.json"),
    *("simple_auth_manager_passwords.json.generated", "standalone_admin_password.txt", "webserver_config.py"),
)


def source_rules(settings: Settings, environ: Mapping[str, str]) -> SourceRules:
    """None of Airflow's own files, nor of its user's dot files; of runs only finished models."""
    own = [
        settings.dags_folder,
        settings.airflow_home,
        settings.jobs_folder,
        settings.cache_folder,
        settings.log_folder,
        settings.pid_folder,
        settings.workers_folder,
    ]
    if environ.get("AIRFLOW_HOME"):  # an image may keep data there, too
        own += [Path(environ["AIRFLOW_HOME"]).expanduser() / each for each in _SECRETS_OF_AIRFLOW]
    user_home = Path(environ.get("HOME") or "~").expanduser().resolve()
    # This project's samples, what its example prepares, what a hub's client has fetched (its token lies beside).
    hub = user_home / ".cache/huggingface"
    opened = (CHECKOUT / "include/data", settings.home / "etl", hub / "hub", hub / "datasets")
    scheme, separator, _ = settings.run_root.partition("://")
    return SourceRules(
        schemes=(*settings.data_schemes.split(","), *((scheme,) if separator else ())),  # finished models are there
        hosts=tuple(settings.data_hosts.split(",")),
        folders=tuple(settings.data_folders.split(",")) if settings.data_folders else (),
        closed=(*(str(folder.resolve()) for folder in own), f"{user_home}/.*"),
        opened=tuple(str(folder.resolve()) for folder in opened),
        run_root=None if separator else str(Path(settings.run_root).resolve()),
    )
