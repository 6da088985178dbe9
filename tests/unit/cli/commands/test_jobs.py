"""Stored jobs are listed and deleted, many at once, and none from under its runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.commands.test_outputs import stopped
from tests.unit.cli.conftest import Said, World

Command = Callable[..., Said]


@pytest.fixture
def stored(online: Command, spec: Path) -> Callable[[str], None]:
    def store(name: str) -> None:
        file = spec.with_name(f"{name}.yaml")
        file.write_text(spec.read_text().replace("name: words", f"name: {name}"))
        assert online("submit", str(file), "--no-trigger").status == 0

    return store


def test_the_jobs_of_a_pattern_are_deleted_and_no_others(online: Command, stored: Callable[[str], None]) -> None:
    for name in ("sweep-a", "sweep-b", "kept"):
        stored(name)
    assert {"sweep-a", "sweep-b", "kept"} <= set(online("jobs").out.split())
    assert online("jobs", "sweep-*", "--delete").out == "sweep-a deleted\nsweep-b deleted\n"
    left = [each["job"] for each in json.loads(online("jobs", "--json").out)]
    assert "kept" in left
    assert "sweep-a" not in left


def test_a_job_is_listed_with_its_schedule_and_its_newest_run(
    online: Command, stored: Callable[[str], None], world: World
) -> None:
    for name in ("by-nightly", "by-hand", "by-never"):
        stored(name)
    world.airflow.schedules = {"job_a": "", "job_aa": "", "job_by-hand": None, "job_by-nightly": "0 3 * * *"}
    stopped(world, "by-nightly")
    newest = world.registered("by-nightly", run_id="second").run
    found = {each["job"]: each for each in json.loads(online("jobs", "by-*", "--json").out)}
    assert [each["schedule"] for each in found.values()] == [None, None, "0 3 * * *"]
    assert (found["by-nightly"]["run_key"], found["by-nightly"]["state"]) == (newest.run_key, newest.state)
    assert found["by-never"]["state"] is None
    said = " ".join(online("jobs", "by-*").out.split())
    assert f"by-hand - - - - by-never - - - - by-nightly 0 3 * * *, paused {newest.run_key} {newest.state}" in said


def test_jobs_are_listed_to_whom_airflow_refuses_the_list_of_dags(
    online: Command, stored: Callable[[str], None], world: World
) -> None:
    stored("closed-one")
    stopped(world, "closed-one")
    world.airflow.schedules, world.airflow.closed = {"job_closed-one": "0 3 * * *"}, "~"
    (found,) = json.loads(online("jobs", "closed-*", "--json").out)
    world.airflow.closed = ""
    assert (found["job"], found["schedule"], found["state"] is None) == ("closed-one", None, False)


def test_a_name_that_is_no_jobs_and_a_deletion_of_all_are_refused(online: Command) -> None:
    assert "no stored job 'nobodys'" in online("jobs", "nobodys", "--delete").err
    said = online("jobs", "--delete")
    assert (said.status, "Name them" in said.err) == (2, True)


def test_a_job_with_a_run_that_has_not_ended_stays(
    online: Command, stored: Callable[[str], None], world: World
) -> None:
    for name in ("idle-a", "idle-b"):
        stored(name)
    world.registered("idle-b")
    said = online("jobs", "idle-*", "--delete")
    assert (said.status, "runs of idle-b have not ended" in said.err) == (2, True)
    assert online("jobs", "idle-a", "--delete").out == "idle-a deleted\n"


def test_a_job_whose_runs_have_ended_can_be_deleted(
    online: Command, stored: Callable[[str], None], world: World
) -> None:
    stored("ended")
    stopped(world, "ended")
    assert online("jobs", "ended", "--delete").out == "ended deleted\n"
