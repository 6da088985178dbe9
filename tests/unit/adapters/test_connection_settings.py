"""What the Connection says becomes settings once in a process; not knowing it is told from there being none."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from frenzy.adapters.connection_settings import ConnectionSettings
from frenzy.core.values.errors import SpecError, TemporaryError
from frenzy.settings import LauncherKind, PlacementPolicy, Settings


class Answers:
    """A Connection's extras as they are at each look; an exception is a look that fails."""

    def __init__(self, answers: Iterable[str | None | Exception]) -> None:
        self._answers = iter(answers)
        self.num_looks = 0

    def __call__(self) -> str | None:
        self.num_looks += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_the_connection_is_asked_once_and_the_environment_each_time() -> None:
    look = Answers(['{"FRENZY_LAUNCHER": "kubernetes", "FRENZY_POLICY": "fifo"}'])
    known = ConnectionSettings(look)
    first, second = known.of({}), known.of({"FRENZY_POLICY": "backfill"})
    assert (first.launcher, first.placement_policy) == (LauncherKind.KUBERNETES, PlacementPolicy.FIFO)
    assert (second.launcher, second.placement_policy) == (LauncherKind.KUBERNETES, PlacementPolicy.BACKFILL)
    assert look.num_looks == 1


@pytest.mark.parametrize("extra", [None, "", "{}"])
def test_without_a_connection_or_extras_the_environment_says_all_and_nobody_asks_again(extra: str | None) -> None:
    look = Answers([extra])
    known = ConnectionSettings(look)
    assert known.of({}) == known.of({}) == Settings()
    assert look.num_looks == 1


def test_the_section_of_airflow_s_configuration_stands_between_environment_and_connection() -> None:
    extras = '{"FRENZY_POLICY": "fifo", "FRENZY_LEASE_S": 70, "FRENZY_MAX_MOVES": 7}'
    section = {"policy": "backfill", "lease_s": 80, "queues": None}
    found = ConnectionSettings(Answers([extras]), lambda: section).of({"FRENZY_LEASE_S": "90", "FRENZY_POLICY": ""})
    assert (found.lease_s, found.placement_policy, found.max_moves) == (90.0, PlacementPolicy.BACKFILL, 7)
    assert found.queue_file is None


@pytest.mark.parametrize("option", ["polcy", "frenzy_policy", "home"])
def test_an_option_of_the_section_that_is_no_shared_setting_is_refused(option: str) -> None:
    with pytest.raises(SpecError) as refusal:
        ConnectionSettings(Answers([None]), lambda: {option: "x"}).of({})
    (found,) = refusal.value.violations
    assert found.path == f"{option} in the section [frenzy] of Airflow's configuration"
    assert "policy" in found.allowed


def test_a_failure_to_ask_is_no_absence_and_the_next_look_may_find_it() -> None:
    known = ConnectionSettings(Answers([OSError("no route"), '{"FRENZY_LAUNCHER": "kubernetes"}']))
    with pytest.raises(TemporaryError, match=r"frenzy_default could not be read: OSError: no route"):
        known.of({"FRENZY_LAUNCHER": "local"})
    assert known.of({}).launcher is LauncherKind.KUBERNETES


def test_what_only_shows_settings_takes_those_of_the_environment_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    known = ConnectionSettings(Answers([OSError("no route"), '{"FRENZY_POLICY": "fifo"}']))
    with caplog.at_level(logging.WARNING):
        assert known.at_hand({"FRENZY_LEASE_S": "9"}) == Settings(lease_s=9.0)
    assert "no route" in caplog.text
    assert known.at_hand({}).placement_policy is PlacementPolicy.FIFO


def test_a_refused_setting_is_asked_for_again_so_that_its_correction_is_seen() -> None:
    known = ConnectionSettings(Answers(['{"FRENZY_POLICY": "best"}', '{"FRENZY_POLICY": "fifo"}']))
    with pytest.raises(SpecError, match="FRENZY_POLICY in the extras of the Connection frenzy_default: 'best'"):
        known.of({})
    assert known.of({}).placement_policy is PlacementPolicy.FIFO


@pytest.mark.parametrize("extra", ["geheim", "[1]", '"geheim"', "3"])
def test_extras_that_are_no_object_are_refused_and_not_shown(extra: str) -> None:
    with pytest.raises(SpecError, match="give a JSON object") as refusal:
        ConnectionSettings(Answers([extra])).of({})
    assert "geheim" not in str(refusal.value)


# in processes of their own: how Airflow is asked

_TELL = """
import sys
from frenzy.adapters.connection_settings import settings_of_airflow
from frenzy.core.values.errors import FrenzyError
try:
    print("told", settings_of_airflow().placement_policy, "airflow" in sys.modules)
except FrenzyError as error:
    print("told", error)
"""


def told(environ: dict[str, str], home: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW", "FRENZY"))}
    given = {**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    done = subprocess.run([sys.executable, "-c", _TELL], env=given, capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("told "))


def test_where_no_airflow_is_set_up_none_is_imported_or_made(tmp_path: Path) -> None:
    assert told({"AIRFLOW_HOME": str(tmp_path / "airflow")}, tmp_path) == "told has False"
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_was_never_made_is_not_made_by_asking(tmp_path: Path) -> None:
    (tmp_path / "airflow.cfg").write_text("[core]\nload_examples = False\n", encoding="utf-8")
    assert told({"AIRFLOW_HOME": str(tmp_path)}, tmp_path) == "told has True"
    assert not (tmp_path / "airflow.db").exists()


@pytest.mark.parametrize(
    "form", [json.dumps({"conn_type": "http", "extra": {"FRENZY_POLICY": "fifo"}}), "http://h:1/?FRENZY_POLICY=fifo"]
)
def test_a_connection_of_the_environment_is_taken_in_both_of_airflows_forms(form: str, tmp_path: Path) -> None:
    environ = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_FRENZY_DEFAULT": form}
    assert told(environ, tmp_path) == "told fifo True"


def test_a_database_without_tables_is_not_taken_for_one_without_the_connection(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    answer = told({"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url}, tmp_path)
    assert "The Connection frenzy_default could not be read: OperationalError" in answer


@pytest.mark.parametrize(
    ("form", "says"), [("_CMD", "give each option's value itself"), ("_SECRET", "lease_s_secret in the section")]
)
def test_a_command_or_a_secret_for_an_option_that_is_none_is_refused(form: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "airflow.cfg").write_text("[core]\nload_examples = False\n", encoding="utf-8")
    assert says in told({"AIRFLOW_HOME": str(tmp_path), f"AIRFLOW__FRENZY__LEASE_S{form}": "echo 60"}, tmp_path)
