"""As whom the command speaks to the Airflow of this home."""

from __future__ import annotations

from pathlib import Path

import pytest

from frenzy.cli.commands.server import connect
from frenzy.cli.embedded.airflow_env import secrets_of
from frenzy.core.values.errors import SpecError
from frenzy.settings import load_settings


@pytest.fixture
def home(alone: Path) -> dict[str, str]:
    environ = {"FRENZY_HOME": str(alone / "home")}
    secrets_of(load_settings(environ))
    (alone / "home/stack.json").write_text('{"port": 1}', encoding="utf-8")
    return environ


@pytest.mark.parametrize(("given", "login"), [({}, "admin"), ({"FRENZY_USER": "viewer"}, "viewer")])
def test_it_is_the_administrator_or_who_is_named(given: dict[str, str], login: str, home: dict[str, str]) -> None:
    with connect({**home, **given}) as api:
        assert api.login == login


def test_somebody_unknown_here_is_refused_with_those_who_are_known(home: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="admin, frenzy, viewer"):
        connect({**home, "FRENZY_USER": "ada"})
