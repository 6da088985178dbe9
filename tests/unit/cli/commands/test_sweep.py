"""``frenzy sweep``: every combination a job and run of its own, none before all are checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.unit.cli.conftest import Said, World

from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.cli.commands.sweep import progress_line
from frenzy.core.runs.ledger import JobState

Command = Callable[..., Said]
RATES = ("--set", "training.learning_rate=1e-4,3e-4")
STEPS = ("--set", "training.max_steps=5,10")


def test_every_combination_is_stored_and_started(online: Command, world: World, spec: Path) -> None:
    before = len(world.airflow.triggered)
    said = online("sweep", str(spec), *RATES, *STEPS)
    assert said.status == 0, said.err
    names = ["words-lr1e-4-ms5", "words-lr1e-4-ms10", "words-lr3e-4-ms5", "words-lr3e-4-ms10"]
    triggered = world.airflow.triggered[before:]
    assert [dag_id for dag_id, _ in triggered] == [f"job_{each}" for each in names]
    for (_, body), name in zip(triggered, names, strict=True):
        assert name in said.out and body["dag_run_id"] in said.out
    assert "frenzy status" in said.out
    job = job_from_yaml(world.services.jobs.get("words-lr3e-4-ms10") or "")
    assert (job.training.learning_rate, job.training.max_steps, job.training.global_batch_size) == (3e-4, 10, 4)
    assert job.data.path == str(spec.parent / "words.txt"), "found beside the file"


def test_the_dry_run_needs_no_server(frenzy: Command, spec: Path) -> None:
    said = frenzy("sweep", str(spec), *RATES, "--dry-run", "--json")
    assert said.status == 0, said.err
    assert [(each["job"], each["values"], each["run_id"]) for each in json.loads(said.out)["runs"]] == [
        ("words-lr1e-4", {"training.learning_rate": 1e-4}, None),
        ("words-lr3e-4", {"training.learning_rate": 3e-4}, None),
    ]
    assert "words-lr3e-4" in frenzy("sweep", str(spec), *RATES, "--dry-run").out


def test_one_bad_combination_keeps_all_from_being_submitted(online: Command, world: World, spec: Path) -> None:
    before = len(world.airflow.triggered)
    said = online("sweep", str(spec), "--set", "training.learning_rate=7e-4,-1", "--set", "training.max_stepz=5")
    assert said.status == 2
    assert "training.learning_rate" in said.err and "did you mean training.max_steps?" in said.err
    assert len(world.airflow.triggered) == before
    assert world.services.jobs.get("words-lr7e-4-ms5") is None


def test_a_sweep_leaves_no_schedule_behind(frenzy: Command, spec: Path) -> None:
    spec.write_text(spec.read_text(encoding="utf-8") + "\ntrigger: {cron: '0 2 * * *'}\n", encoding="utf-8")
    said = frenzy("sweep", str(spec), *RATES, "--dry-run")
    assert said.status == 2
    assert "trigger" in said.err and "leave it out" in said.err


def test_more_runs_than_allowed_are_refused(frenzy: Command, spec: Path) -> None:
    said = frenzy("sweep", str(spec), *RATES, *STEPS, "--max-runs", "3", "--dry-run")
    assert said.status == 2
    assert "4 combinations" in said.err and "--max-runs" in said.err


def test_what_was_started_is_told_when_the_rest_cannot_be(online: Command, world: World, spec: Path) -> None:
    world.airflow.closed = "job_words-lr3e-4-ms5"
    said = online("sweep", str(spec), *RATES, *STEPS)
    world.airflow.closed = ""
    assert said.status == 2
    assert "words-lr1e-4-ms5" in said.err and "words-lr1e-4-ms10" in said.err
    assert "2 runs" in said.err


def test_waiting_ends_with_a_failure_where_a_run_left_nothing_to_compare(
    online: Command, world: World, spec: Path
) -> None:
    said = online("sweep", str(spec), *RATES, "--wait", "--json")
    assert said.status == 1
    told = json.loads(said.out)
    assert (len(told["runs"]), told["trials"]) == (2, [])
    assert "2 of 2 runs have ended" in said.err


def test_progress_says_in_which_states_the_others_are() -> None:
    states = [JobState.RUNNING, JobState.QUEUED, None, JobState.RUNNING]
    line = progress_line(6, ["words-lr1e-4"], states)
    assert line == "2 of 6 runs have ended. Ended: words-lr1e-4. Now 1 QUEUED, 2 RUNNING, 1 starting."
    assert progress_line(6, [], []) == "6 of 6 runs have ended."
