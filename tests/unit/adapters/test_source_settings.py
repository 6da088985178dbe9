from __future__ import annotations

from pathlib import Path

from frenzy.adapters.source_settings import source_rules
from frenzy.core.values.sources import path_problem
from frenzy.settings import CHECKOUT, load_settings


def test_nothing_of_airflows_own_is_read_for_users_wherever_airflow_is(tmp_path: Path) -> None:
    environ = {"FRENZY_HOME": str(tmp_path / "frenzy"), "AIRFLOW_HOME": str(tmp_path / "airflow")}
    rules = source_rules(load_settings(environ), environ)
    runs = tmp_path / "frenzy/runs"
    for place in ("frenzy/airflow/secrets.json", "frenzy/jobs/x.yaml", "airflow/airflow.db", "airflow/logs/x.log"):
        assert path_problem(str(tmp_path / place), rules) is not None, place
    assert path_problem(str(runs / "k/attempt-1/spec.json"), rules) is not None
    assert path_problem(str(runs / "k/model/config.json"), rules) is None
    assert path_problem(str(tmp_path / "airflow/include/data/words.txt"), rules) is None


def test_dot_files_dags_and_what_the_machine_keeps_are_not_read_for_users(tmp_path: Path) -> None:
    rules = source_rules(load_settings({"FRENZY_DAGS": str(tmp_path / "dags")}), {"HOME": str(tmp_path)})
    for closed in (".docker/config.json", ".bashrc", "dags/train.py"):
        assert path_problem(str(tmp_path / closed), rules) is not None
    for closed in ("/etc/passwd", "/root/.ssh/id_ed25519"):
        assert path_problem(closed, rules) is not None
    assert path_problem(str(tmp_path / "books/.hidden.txt"), rules) is None
    assert path_problem(str((CHECKOUT / "include/data/words.txt").resolve()), rules) is None
    below = source_rules(load_settings({"FRENZY_HOME": str(tmp_path / ".frenzy")}), {"HOME": str(tmp_path)})
    assert path_problem(str(tmp_path / ".frenzy/runs/0123456789ab/model"), below) is None
    assert path_problem(str(tmp_path / ".frenzy/runs/0123456789ab/data"), below) is not None
