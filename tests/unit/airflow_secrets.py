"""What Airflow's processes hold that no process of a user's is to see."""

from __future__ import annotations

from typing import Final

import pytest

SECRET: Final = "geheim"
_VARIABLES: Final = (
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW_CONN_FRENZY_DEFAULT",
    "FRENZY_DATABASE",
    "AWS_SECRET_ACCESS_KEY",
)


def hold_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has SECRET in each such variable."""
    for name in _VARIABLES:
        monkeypatch.setenv(name, SECRET)
