"""This package as Airflow's provider registry knows it."""

from __future__ import annotations

from typing import Any, Final

from frenzy import __version__
from frenzy.adapters.connection_settings import CONFIG_SECTION, option_of
from frenzy.settings import load_settings

# What Airflow's pages say of each setting that is not of one machine; docs/operations.md says more.
_ABOUT: Final = {
    "FRENZY_CLUSTER": "The cluster file, by its whole path.",
    "FRENZY_PODS": "The pod rules for the launcher kubernetes, by their whole path.",
    "FRENZY_QUEUES": "The queue file: shares, quotas, who may use a queue, secrets; by its whole path.",
    "FRENZY_LAUNCHER": "Where workers run: local (processes of this machine) or kubernetes (pods).",
    "FRENZY_KUBERNETES_CONN_ID": "The Airflow Connection to the cluster.",
    "FRENZY_RUN_ROOT": "Folder or fsspec URL of the run directories.",
    "FRENZY_POLICY": "Which job starts, and which running job is moved for it: has, backfill, fifo or frenzy-paper.",
    "FRENZY_MARP_POLICY": "The memory model: closed-form or paper.",
    "FRENZY_LEASE_S": "Life of a lease without a heartbeat, in seconds.",
    "FRENZY_POLL_S": "Polling interval of a trigger, in seconds; 2 with the launcher kubernetes.",
    "FRENZY_STOP_GRACE_S": "How long workers that are asked to stop may show no progress, in seconds.",
    "FRENZY_HANG_S": "Silence after which a training is taken to hang, in seconds.",
    "FRENZY_STARTUP_S": "Silence after which a start is taken to hang, in seconds.",
    "FRENZY_COLLECTIVE_TIMEOUT_S": "How long ranks wait for one another in one exchange, in seconds.",
    "FRENZY_PREPARE_ABOVE_TOKENS": "Data with more tokens are prepared before the run holds GPUs.",
    "FRENZY_ELASTIC": "Whether running jobs are moved for others: auto or off.",
    "FRENZY_RESTART_S": "Assumed cost of a move until the run's own attempts have shown it, in seconds.",
    "FRENZY_MIN_RUN_S": "Least time between two moves of a run, in seconds.",
    "FRENZY_MAX_MOVES": "Moves of a run.",
    "FRENZY_MOVE_REFILL_S": "Running time after which a run gets one more move, in seconds.",
    "FRENZY_NOTIFIERS": "module:name of the frenzy.Notifiers of trainings whose DAG names none.",
}
# Of one installation: a default path would be that of the machine which shows it.
_OF_INSTALLATION: Final = ("FRENZY_CLUSTER", "FRENZY_PODS", "FRENZY_RUN_ROOT")


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata, read through the ``apache_airflow_provider`` entry point."""
    return {
        "package-name": "frenzy-airflow",
        "name": "Frenzy",
        "description": "Serverless training of language models on mixed GPU clusters.",
        "versions": [__version__],
        "connection-types": [
            {
                "connection-type": "frenzy",
                "hook-name": "Frenzy",
                "hook-class-name": "frenzy.airflow.hook.FrenzyHook",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {"schema": "Scheme", "host": "Airflow's API server", "extra": "Shared settings"},
                    "placeholders": {"schema": "http or https", "port": "8080", "login": "frenzy"},
                },
            }
        ],
        "extra-links": ["frenzy.airflow.links.RunLink"],
        "config": {
            CONFIG_SECTION: {
                "description": "Settings of Frenzy; variables FRENZY_* win over them, they win over the Connection.",
                "options": {option_of(name): _option(name, about) for name, about in _ABOUT.items()},
            }
        },
    }


def _option(variable: str, about: str) -> dict[str, Any]:
    """An option without a default in force: what nobody sets is left to the Connection. The default is told."""
    known = "" if variable in _OF_INSTALLATION else load_settings({}).environment().get(variable, "")
    words = f"{about} Default: {known}." if known else about
    return {
        "description": words,
        "version_added": None,
        "type": "string",
        "example": known or None,
        "default": None,
    }
