"""The verbs that ask the server: same values as tables and as JSON, and plain words for every trouble."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Said, World

from frenzy.app.place import enqueue
from frenzy.core.runs.ledger import JobState
from frenzy.core.values.errors import Reason, ReasonCode

Command = Callable[..., Said]
BUSY = Reason(code=ReasonCode.LEDGER_BUSY)
AWAY = Reason(code=ReasonCode.API_UNREACHABLE)
READING = (("status",), ("queue",), ("gpus",))


@pytest.mark.parametrize("arguments", READING)
def test_tables_and_json_both_come(arguments: tuple[str, ...], online: Command, world: World) -> None:
    world.registered("shown")
    assert online(*arguments).status == 0
    told = online(*arguments, "--json")
    assert told.status == 0
    json.loads(told.out)


def test_status_lists_runs_and_one_run_s_history(online: Command, world: World) -> None:
    view = world.registered("history")
    listed = online("status")
    assert view.run.run_key in listed.out
    single = online("status", view.run.run_key)
    assert "History" in single.out
    assert "35" not in single.err


@pytest.mark.parametrize("name", ["key", "job", "dag", "run"])
def test_run_is_found_by_any_of_its_names(name: str, online: Command, world: World) -> None:
    view = world.registered(f"found-by-{name}", run_id=f"manual__{name}")
    identity = view.run.identity
    reference = {"key": view.run.run_key, "job": view.run.job.name, "dag": identity.dag_id, "run": identity.run_id}[
        name
    ]
    told = json.loads(online("status", reference, "--json").out)
    assert told["run"]["run_key"] == view.run.run_key


def test_job_s_name_means_its_newest_run(online: Command, world: World) -> None:
    world.registered("twice", run_id="first")
    newest = world.registered("twice", run_id="second")
    assert json.loads(online("status", "twice", "--json").out)["run"]["run_key"] == newest.run.run_key


@pytest.mark.parametrize("verb", ["status", "explain", "logs", "cancel"])
def test_unknown_run_is_told_with_the_known_jobs(verb: str, online: Command, world: World) -> None:
    world.registered("known")
    said = online(verb, "unheard-of")
    assert said.status == 2
    assert "unheard-of" in said.err
    assert "known" in said.err


def test_placed_run_shows_in_queue_and_gpus(online: Command, world: World) -> None:
    view = world.registered("holder")
    enqueue(world.services, view.run.run_key)
    assert view.run.run_key in online("queue").out
    assert view.run.run_key in online("gpus").out
    assert view.run.run_key in [row["run_key"] for row in json.loads(online("queue", "--json").out)["running"]]


def test_explanation_is_the_api_s(online: Command, world: World) -> None:
    view = world.registered("explained")
    lines = json.loads(online("explain", view.run.run_key, "--json").out)["lines"]
    assert lines[0] in online("explain", view.run.run_key).out


def test_an_explanation_by_a_job_s_name_says_of_which_run_it_is(online: Command, world: World) -> None:
    world.registered("explained-twice", run_id="first")
    newest = world.registered("explained-twice", run_id="second").run
    first_line = online("explain", "explained-twice").out.splitlines()[0]
    assert first_line == f"Run {newest.run_key}, DAG run {newest.identity.dag_id} / second"


def test_cancelling_ends_a_run_and_saying_it_twice_is_harmless(online: Command, world: World) -> None:
    view = world.registered("cancelled")
    assert online("cancel", view.run.run_key, "--why", "Enough.").status == 0
    again = online("cancel", view.run.run_key)
    assert again.status == 0
    assert "ended before" in again.out
    assert json.loads(online("status", view.run.run_key, "--json").out)["run"]["state"] == JobState.CANCELLED


def test_logs_of_a_run_without_attempts_are_refused_in_words(online: Command, world: World) -> None:
    view = world.registered("silent")
    said = online("logs", view.run.run_key)
    assert said.status == 2
    assert "no attempt" in said.err


def test_logs_of_a_rank_that_is_not_there_name_those_that_are(online: Command, world: World) -> None:
    run_key = world.registered("ranked").run.run_key
    enqueue(world.services, run_key)
    said = online("logs", run_key, "--rank", "99")
    assert (said.status, said.out) == (2, "")
    assert "no rank 99; it has rank" in said.err


def test_submitting_stores_the_spec_and_starts_a_run_of_it(online: Command, world: World, spec: Path) -> None:
    world.airflow.looks_until_parsed = 3
    said = online("submit", str(spec))
    assert said.status == 0
    dag_id, body = world.airflow.triggered[-1]
    assert (dag_id, body["logical_date"], body["conf"]) == ("job_words", None, {})
    assert body["dag_run_id"] in said.out
    assert getpass.getuser() in body["note"], "whose account asked for it"
    stored = world.services.jobs.get("words") or ""
    assert str(spec.parent / "words.txt") in stored
    assert stored.startswith("# a small job")
    assert "# beside this file" in stored


def test_submitting_says_what_is_trained_and_which_default_is_seldom_meant(online: Command, spec: Path) -> None:
    text = spec.read_text().replace("vocab_size: 264", "vocab_size: 50257").replace("name: words", "name: byte-words")
    spec.write_text(text)
    said = online("submit", str(spec), "--no-trigger")
    assert "Model: gpt2 of " in said.out
    assert said.err.startswith("Note: model.tokenizer is byte")
    assert "steps: the data" not in said.err, "no times are told here"


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("failed", "failed. train.profile: SPEC_REFUSED: data.path: '/x' is refused"),
        ("running", "is running."),
        (None, "it was not started yet."),
    ],
)
def test_a_stored_job_without_a_training_run_is_told_why(
    state: str | None, told: str, online: Command, world: World, spec: Path
) -> None:
    name = f"runless-{state or 'idle'}"
    spec.write_text(spec.read_text().replace("name: words", f"name: {name}"))
    world.airflow.error = "SPEC_REFUSED: data.path: '/x' is refused"
    online("submit", str(spec), *(["--no-trigger"] if state is None else []))
    world.airflow.state = state or "success"
    for verb in ("status", "explain", "logs", "models"):
        said = online(verb, name)
        assert said.status == 2
        assert f"The job '{name}' is stored, but has no training run" in said.err
        assert told in said.err


def test_a_submission_that_another_replaced_is_told_so_and_starts_nothing(
    online: Command, world: World, spec: Path
) -> None:
    text = spec.read_text().replace("name: words", "name: twice")
    spec.write_text(text)
    before, world.airflow.looks_until_parsed = len(world.airflow.triggered), 1000
    world.airflow.stored_meanwhile = text.replace("max_steps: 10", "max_steps: 11")
    said = online("submit", str(spec))
    world.airflow.looks_until_parsed, world.airflow.stored_meanwhile = 2, None
    assert said.status == 2
    assert "Another submission has replaced the job 'twice'" in said.err
    assert "name of its own" in said.err
    assert len(world.airflow.triggered) == before


def test_submitting_without_trigger_tells_that_a_schedule_starts_runs(online: Command, spec: Path) -> None:
    spec.write_text(f"{spec.read_text()}trigger: {{cron: '0 3 * * *'}}\n")
    told = "0 3 * * * (UTC); of a new job also one at once"
    assert f"starts its runs: {told}" in online("submit", str(spec), "--no-trigger").out
    assert f"starts further runs: {told}" in online("submit", str(spec)).out


def test_no_run_is_started_of_a_job_with_a_slip_in_its_models_config(online: Command, world: World, spec: Path) -> None:
    spec.write_text(spec.read_text().replace("n_layer: 2", "n_lyer: 2").replace("name: words", "name: slip"))
    before = len(world.airflow.triggered)
    said = online("submit", str(spec))
    assert said.status == 2
    assert "model.config.n_lyer" in said.err
    assert "did you mean n_layer?" in said.err
    assert len(world.airflow.triggered) == before


def test_a_job_that_fits_nowhere_is_stored_and_told_so_at_once_and_no_run_is_started(
    online: Command, world: World, spec: Path
) -> None:
    text = spec.read_text().replace("n_embd: 64", "n_embd: 8192").replace("n_layer: 2", "n_layer: 96")
    spec.write_text(text.replace("name: words", "name: too-big"))
    before = len(world.airflow.triggered)
    said = online("submit", str(spec))
    assert said.status == 1
    assert "No plan fits now, and no run was started." in said.out
    assert "frenzy plan FILE --fit 1xCARD" in said.out and "--delete" in said.out
    assert "INSUFFICIENT_GPU_MEMORY: No plan fits the cluster" in said.err
    assert "Remedy:" in said.err
    stored_only = online("submit", str(spec), "--no-trigger", "--json")
    assert stored_only.status == 0
    assert json.loads(stored_only.out)["refusal"]["code"] == "INSUFFICIENT_GPU_MEMORY"
    assert len(world.airflow.triggered) == before
    assert world.services.jobs.get("too-big") is not None


def test_submitting_tells_which_assets_start_further_runs(online: Command, spec: Path) -> None:
    spec.write_text(f"{spec.read_text()}trigger: {{assets: ['s3://bucket/a.parquet', 'frenzy://models/base']}}\n")
    told = "each time that all of these Assets were updated: s3://bucket/a.parquet, frenzy://models/base"
    assert f"starts its runs {told}." in online("submit", str(spec), "--no-trigger").out
    assert f"starts further runs {told}." in online("submit", str(spec)).out


def test_submitting_without_trigger_only_stores(online: Command, world: World, spec: Path) -> None:
    before = len(world.airflow.triggered)
    said = online("submit", str(spec), "--no-trigger", "--json")
    assert json.loads(said.out)["run_id"] is None
    assert len(world.airflow.triggered) == before


def test_waiting_for_a_job_that_its_first_task_refuses_tells_why(online: Command, world: World, spec: Path) -> None:
    refusal = "SPEC_REFUSED: data.path: '/x' is refused; give a file that exists"
    world.airflow.state, world.airflow.error = "failed", refusal
    said = online("submit", str(spec), "--wait")
    assert said.status == 1
    assert said.err == f"train.profile: {refusal}\n"


def test_waiting_for_a_failure_whose_log_is_closed_names_the_task(online: Command, world: World, spec: Path) -> None:
    world.airflow.state, world.airflow.error = "failed", None
    said = online("submit", str(spec), "--wait")
    assert said.status == 1
    assert "train.profile: its log cannot be read" in said.err


@pytest.mark.parametrize("arguments", [*READING, ("explain", "x"), ("cancel", "x"), ("logs", "x")])
def test_without_a_server_the_remedy_is_told(arguments: tuple[str, ...], frenzy: Command) -> None:
    said = frenzy(*arguments)
    assert said.status == 3
    assert "frenzy up" in said.err
    assert said.out == ""


def test_server_that_does_not_answer_is_named(frenzy: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    for name, value in (("URL", url), ("USER", "u"), ("PASSWORD", "p")):
        monkeypatch.setenv(f"FRENZY_{name}", value)
    said = frenzy("queue")
    assert said.status == 3
    assert url in said.err
    assert "Remedy:" in said.err


def test_server_without_login_is_refused(frenzy: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRENZY_URL", "http://127.0.0.1:1")
    said = frenzy("queue")
    assert said.status == 2
    assert "FRENZY_USER" in said.err
    assert "FRENZY_PASSWORD" in said.err


def test_bad_setting_is_refused_in_words(frenzy: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRENZY_PORT", "eighty")
    said = frenzy("up", "--status")
    assert said.status == 2
    assert "FRENZY_PORT" in said.err


def test_nothing_runs_in_a_fresh_home(frenzy: Command) -> None:
    said = frenzy("up", "--status")
    assert said.status == 1
    assert "not running" in said.out
    assert frenzy("down").status == 0


def test_version_and_help(frenzy: Command) -> None:
    assert frenzy("--version").out.startswith("frenzy ")
    assert "submit" in frenzy("--help").out
    assert "--install-completion" in frenzy("--help").out
    assert frenzy("submit").status == 2
