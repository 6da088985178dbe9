"""This package as Airflow's provider registry knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from frenzy import __version__
from frenzy.adapters.connection_settings import CONFIG_SECTION, option_of
from frenzy.settings import load_settings

# Of one installation: a default path would be that of the machine which shows it.
_OF_INSTALLATION: Final = ("FRENZY_CLUSTER", "FRENZY_PODS", "FRENZY_RUN_ROOT")


def get_provider_info() -> dict[str, Any]:
    """The provider's metadata, read through the ``apache_airflow_provider`` entry point.

    The file says of each setting that is not of one machine what it is for; docs/operations.md says more.
    """
    info: dict[str, Any] = json.loads(Path(__file__).with_name("provider.json").read_text(encoding="utf-8"))
    section = info["config"][CONFIG_SECTION]
    section["options"] = {option_of(name): _option(name, about) for name, about in section["options"].items()}
    return {**info, "versions": [__version__]}


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
