"""The files by which others take part: pre-commit, workflow, templates."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_pre_commit_runs_the_ruff_of_the_lock() -> None:
    locked = re.search(r"^ruff==(\S+)$", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    repos = {each["repo"].rpartition("/")[2]: each for each in read(".pre-commit-config.yaml")["repos"]}
    assert locked is not None
    assert repos["ruff-pre-commit"]["rev"] == f"v{locked[1]}"
    assert [hook["id"] for hook in repos["ruff-pre-commit"]["hooks"]] == ["ruff-check", "ruff-format"]


def test_pre_commit_needs_no_environment_of_the_project() -> None:
    repos = read(".pre-commit-config.yaml")["repos"]
    assert "local" not in [each["repo"] for each in repos]
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", each["rev"]) for each in repos)


def test_the_workflow_runs_targets_that_exist_and_knows_no_secret() -> None:
    workflow = read(".github/workflows/check.yml")
    run = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"make check", "make test", "sudo make images"} <= set(run)
    assert {target for each in run for target in re.findall(r"\bmake (\S+)", each)} <= targets
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets" not in (ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8")


def test_cleaning_stops_every_airflow_of_the_checkout_and_leaves_a_home_elsewhere(tmp_path: Path) -> None:
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    homes = [checkout / ".frenzy/demo", home, home / "demo"]
    for folder in (*homes, checkout / ".venv/bin"):
        folder.mkdir(parents=True)
    for folder in homes:
        (folder / "stack.json").touch()
    frenzy = checkout / ".venv/bin/frenzy"
    frenzy.write_text(f'#!/bin/sh\necho "$FRENZY_HOME $1" >>{tmp_path}/stopped\n', encoding="utf-8")
    frenzy.chmod(0o755)
    (checkout / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    environ = {"PATH": os.environ["PATH"], "FRENZY_HOME": str(home)}
    said = subprocess.run(("make", "clean"), cwd=checkout, env=environ, capture_output=True, text=True, check=True)
    assert {*(tmp_path / "stopped").read_text("utf-8").splitlines()} == {f"{each} down" for each in homes}
    assert f"{home} stays" in said.stdout
    assert not (checkout / ".frenzy").exists() and not (checkout / ".venv").exists() and home.is_dir()
    said = subprocess.run(
        ("make", "clean"),
        cwd=checkout,
        env={**environ, "FRENZY_HOME": f"{checkout}/.frenzy"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "stays" not in said.stdout


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_ask_for_something(path: Path) -> None:
    template = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        return
    fields = [each for each in template["body"] if each["type"] != "markdown"]
    assert template["name"] and template["description"]
    assert any(each.get("validations", {}).get("required") for each in fields)
    assert len({each["id"] for each in fields}) == len(fields)
