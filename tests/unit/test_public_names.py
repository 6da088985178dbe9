"""``import frenzy`` gives what DAG files and notebooks need, and costs nothing until it is used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import frenzy
from frenzy.core.values.job import TrainingJob
from frenzy.settings import CHECKOUT

FILE = Path(frenzy.__file__)
LAPTOP = CHECKOUT / "include/clusters/laptop.yaml"
SAMPLE = CHECKOUT / "include/jobs/tiny-shakespeare.yaml"


def for_type_checkers() -> dict[str, str]:
    """Each name that type checkers see, and the module that it comes from."""
    guarded = next(each for each in ast.parse(FILE.read_text(encoding="utf-8")).body if isinstance(each, ast.If))
    imports = [each for each in guarded.body if isinstance(each, ast.ImportFrom)]
    return {alias.name: str(each.module) for each in imports for alias in each.names}


def modules_after(code: str) -> set[str]:
    listed = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(answer.stdout))


def test_importing_the_package_imports_nothing_but_it() -> None:
    new = modules_after("import frenzy; dir(frenzy); frenzy.__version__") - modules_after("")
    assert {each for each in new if each.partition(".")[0] not in sys.stdlib_module_names} == {"frenzy"}


def test_names_of_earlier_dag_files_and_stored_triggers_resolve() -> None:
    from frenzy.airflow.task_group import frenzy_evaluation, frenzy_training
    from frenzy.airflow.triggers import LaunchTrigger, MonitorTrigger, PlaceTrigger
    from frenzy.core import job

    assert (frenzy_training, frenzy_evaluation) == (frenzy.frenzy_training, frenzy.frenzy_evaluation)
    assert (job.TrainingJob, job.DataSpec) == (frenzy.TrainingJob, frenzy.DataSpec)
    assert all(each.__module__.startswith("frenzy.airflow.triggers") for each in (LaunchTrigger, MonitorTrigger))
    assert PlaceTrigger


def test_the_specification_needs_no_airflow() -> None:
    assert not {"airflow", "pydantic", "torch", "typer", "yaml"} & modules_after("from frenzy import TrainingJob")


def test_a_verb_imports_no_other_verbs_module() -> None:
    """Importing all of them takes longer than most verbs do."""
    planned = modules_after("from frenzy.cli.main import make_cli; make_cli(['plan'])")
    assert not {"httpx", "frenzy.core.runs.views", "torch", "airflow"} & planned
    assert "numpy" not in modules_after("from frenzy.cli.main import make_cli; make_cli(['queue'])")


def test_a_verb_that_asks_the_server_imports_no_scheduler() -> None:
    asking = modules_after("import frenzy.settings; from frenzy.cli.main import make_cli; make_cli(['status'])")
    assert "frenzy.core.scheduling" not in asking


def test_the_command_runs_as_a_module_too() -> None:
    asked = [sys.executable, "-m", "frenzy.cli", "--version"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout == f"frenzy {frenzy.__version__}\n"


@pytest.mark.parametrize("name", sorted(set(frenzy.__all__) - {"__version__"}))
def test_each_public_name_is_what_type_checkers_take_it_for(name: str) -> None:
    found = getattr(frenzy, name)
    assert found.__name__ == name
    assert found.__module__ == for_type_checkers()[name]


def test_type_checkers_see_the_public_names_and_no_others() -> None:
    assert sorted(frenzy.__all__) == sorted((*for_type_checkers(), "__version__"))
    assert set(frenzy.__all__) <= set(dir(frenzy))


def test_an_unknown_name_is_refused_as_any_module_refuses_it() -> None:
    with pytest.raises(AttributeError, match="module 'frenzy' has no attribute 'frenzy_trianing'"):
        frenzy.frenzy_trianing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError):
        from frenzy import nothing  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("job", [SAMPLE, str(SAMPLE)])
def test_plans_are_listed_for_a_specification_and_for_its_file(job: Path | str) -> None:
    told = frenzy.plan(job, cluster_file=LAPTOP)
    known: TrainingJob = frenzy.job_from_yaml(SAMPLE.read_text(encoding="utf-8"))
    again = frenzy.plan(known, cluster_file=str(LAPTOP), memory_policy="closed-form")
    assert told.refusal is None
    assert told.candidates[0].feasible
    assert [each.plan for each in again.candidates] == [each.plan for each in told.candidates]
