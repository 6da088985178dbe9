"""This package as Airflow's provider registry knows it."""

from __future__ import annotations

from typing import Any

from frenzy import __version__


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
    }
