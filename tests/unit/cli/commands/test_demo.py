"""The demo's own household: one at a time in a home, a clean end on a signal, a verdict."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.scenarios.evidence import good

from frenzy.cli.commands.follow import StatusSnapshot, phase_of
from frenzy.cli.commands.progress import ProgressView
from frenzy.cli.demo import demo_settings, own_home
from frenzy.cli.demo_checks import judge, judge_migrations
from frenzy.core.runs.ledger import Event, JobState
from frenzy.core.values.errors import PermanentError, SpecError
from frenzy.settings import load_settings


def test_second_demo_in_one_home_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with own_home(tmp_path / "demo"):
        with pytest.raises(PermanentError) as caught, own_home(tmp_path / "demo"):
            pass
        assert "FRENZY_HOME" in (caught.value.reason.remedy or "")
        with own_home(tmp_path / "other"):
            pass
    with own_home(tmp_path / "demo"):
        pass


def test_demo_has_a_home_below_the_usual_one_and_its_own_cluster(tmp_path: Path) -> None:
    cluster = tmp_path / "c.yaml"
    cluster.write_text(
        "gpu_types:\n  a: {kind: virtual, memory: 1 GiB, flops: 1 GFLOPS}\n"
        "nodes:\n  - {name: n, gpu_type: a, gpus: 1}\n"
    )
    usual = load_settings({"FRENZY_HOME": str(tmp_path / "home")})
    settings = demo_settings(usual, cluster)
    assert settings.home == tmp_path / "home/demo"
    assert settings.run_root == str(tmp_path / "home/demo/runs")
    assert settings.cluster_file == cluster


def test_bad_cluster_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    broken = tmp_path / "c.yaml"
    broken.write_text("nodes: 3\n")
    with pytest.raises(SpecError):
        demo_settings(load_settings({"FRENZY_HOME": str(tmp_path)}), broken)


def snapshot(number: int) -> StatusSnapshot:
    view = good().view
    event = Event(run_key="key", time_s=float(number), kind="state", text=f"event {number} [bold]")
    return StatusSnapshot(dag_state="running", views=(view,), new_events=(event,))


def test_progress_in_a_pipe_is_plain_lines_without_markup() -> None:
    console = Console(file=io.StringIO(), width=160, markup=False)
    with ProgressView(console) as progress:
        progress.show(snapshot(1))
        progress.show(replace(snapshot(2), views=()))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "event 1 [bold]" in text
    assert "event 2 [bold]" in text
    assert "\x1b" not in text
    assert "step 40/40" in text


def test_progress_in_a_pipe_is_never_silent_for_five_seconds() -> None:
    console, now_s = Console(file=io.StringIO(), width=160, markup=False), [0.0]
    waiting = StatusSnapshot(dag_state="running", views=(), new_events=(), phase="waiting for GPUs")
    with ProgressView(console, lambda: now_s[0]) as progress:
        for tenth in range(0, 120, 7):
            now_s[0] = tenth / 10
            progress.show(waiting)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "  waiting for GPUs, for 3.5 s"
    assert len(lines) == 3


def test_progress_says_once_that_steps_take_longer_than_predicted() -> None:
    console = Console(file=io.StringIO(), width=160, markup=False)
    view = good().view
    attempts = [
        replace(view.attempts[-1], step_time_s=times * view.attempts[-1].plan.step_time_s) for times in (1, 7, 8)
    ]
    with ProgressView(console) as progress:
        for each in attempts:
            progress.show(replace(snapshot(1), views=(replace(view, attempts=(each,)),)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Steps take 7.0 times as long as predicted" in text
    assert text.count("Steps take") == 1


def test_a_phase_that_has_just_begun_is_told_without_a_time() -> None:
    console, now_s = Console(file=io.StringIO(), width=160, markup=False), [0.0]
    with ProgressView(console, lambda: now_s[0]) as progress:
        for second, phase in ((0.0, "waiting for GPUs"), (4.0, "training")):
            now_s[0] = second
            progress.show(StatusSnapshot(dag_state="running", views=(), new_events=(), phase=phase))
    assert console.file.getvalue() == "  training\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("task", "state", "words"),
    [
        ("train.profile", "running", "reading the model and the data"),
        ("train.place", "deferred", "waiting for GPUs"),
        ("train.place", "queued", "train.place waits for a process of Airflow"),
        ("clean", "running", "clean runs"),
        ("train.decide", "success", "Airflow's scheduler is starting the next task"),
    ],
)
def test_what_is_done_now_is_said_of_the_task_that_is_on(task: str, state: str, words: str) -> None:
    assert words in phase_of([{"task_id": task, "state": state}], ())


def test_while_workers_run_the_phase_is_the_training() -> None:
    view = good().view
    running = replace(view, run=replace(view.run, state=JobState.RUNNING))
    tasks = [{"task_id": f"train.{name}", "state": "deferred"} for name in ("launch", "monitor")]
    assert phase_of(tasks, [running]) == "training"
    assert phase_of(tasks, [replace(view, run=replace(view.run, state=JobState.STARTING))]) == "starting the workers"


def test_progress_on_a_terminal_shows_bars_below_the_events() -> None:
    console = Console(file=io.StringIO(), width=160, markup=False, force_terminal=True)
    with ProgressView(console) as progress:
        progress.show(snapshot(1))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "event 1 [bold]" in text
    assert "memory" in text


def test_a_command_in_the_panel_is_named_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["/elsewhere/frenzy", "run"])
    console = Console(file=io.StringIO(), width=160, markup=False, force_terminal=True)
    with ProgressView(console) as progress:
        progress.show(StatusSnapshot(dag_state="running", views=(), new_events=(), phase="see: frenzy queue"))
    assert "/elsewhere/frenzy" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_verdict_on_one_job_needs_no_more_than_the_ledger() -> None:
    assert [each for each in judge("success", good().view) if not each.passed] == []
    failed = [each.name for each in judge("failed", good().view) if not each.passed]
    assert failed == ["The run reached its last step"]


def test_jobs_that_never_moved_fail_the_verdict_on_moves() -> None:
    still = replace(good().view, attempts=good().view.attempts[1:])
    assert [each.name for each in judge_migrations([still], 0) if not each.passed] == ["No step was lost or repeated"]
    assert "All GPUs are free at the end" in [each.name for each in judge_migrations([still], 1) if not each.passed]
