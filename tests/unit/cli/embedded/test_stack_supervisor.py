"""What died is started again, less and less often; what lives, and what was ended on purpose, is left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from tests.embedded_stack import Stack

from frenzy.cli.embedded.stack import COMPONENTS
from frenzy.cli.embedded.stack_processes import write_record
from frenzy.cli.embedded.stack_supervisor import HEALTHY_AFTER_S, LONGEST_PAUSE_S, Patience, Supervisor, serve_health
from frenzy.settings import load_settings

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


class SleepyStack(Stack):
    """A stack whose components only sleep."""

    started: list[subprocess.Popen[bytes]]

    def _start_component(self, name: str, environ: Mapping[str, str]) -> int:
        self.settings.log_folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(SLEEPER, env={"PATH": "/usr/bin"}, start_new_session=True)
        self._children[name] = process
        self.started.append(process)
        return write_record(self.settings.pid_folder, name, process.pid).pid


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[SleepyStack]:
    made = SleepyStack(load_settings({"FRENZY_HOME": str(tmp_path)}), {})
    made.started = []
    (tmp_path / "stack.json").write_text(json.dumps({"port": 1}), encoding="utf-8")
    for name in COMPONENTS:
        made._start_component(name, {})
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.fixture
def supervisor(stack: SleepyStack) -> Supervisor:
    return Supervisor(stack, {}, "http://127.0.0.1:1/health")


def pids(stack: Stack) -> dict[str, int | None]:
    return {name: record.pid if (record := stack._record(name)) else None for name in COMPONENTS}


def pauses(lives_s: list[float]) -> list[float]:
    """How long each death was waited out by a component that lived so long each time."""
    patience, now_s, seen = Patience(), 1000.0, []
    for lived_s in lives_s:
        patience.started(now_s)
        now_s += lived_s
        died_s = now_s
        while not patience.is_over(now_s):
            now_s += 0.5
        seen.append(now_s - died_s)
    return seen


def test_a_component_that_dies_at_once_is_started_less_and_less_often() -> None:
    assert pauses([HEALTHY_AFTER_S] + [0.0] * 8) == [
        1,
        2,
        4,
        8,
        16,
        32,
        LONGEST_PAUSE_S,
        LONGEST_PAUSE_S,
        LONGEST_PAUSE_S,
    ]


def test_a_minute_of_life_makes_the_pause_short_again() -> None:
    assert pauses([HEALTHY_AFTER_S, 1.0, 1.0, HEALTHY_AFTER_S, 1.0]) == [1, 2, 4, 1, 2]


def test_what_died_is_started_again_and_the_others_are_not_touched(
    stack: SleepyStack, supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pids(stack)
    stack.log_path("triggerer").write_text("Traceback\nOperationalError: database is locked\n\n", encoding="utf-8")
    dead = next(each for each in stack.started if each.pid == before["triggerer"])
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    deadline = time.monotonic() + 10
    while stack.is_dead("triggerer"):
        assert time.monotonic() < deadline
        for name in COMPONENTS:
            supervisor.look(name)
        time.sleep(0.05)
    after = pids(stack)
    assert {name for name in COMPONENTS if before[name] != after[name]} == {"triggerer"}
    known = {each.name: each.restarts for each in stack.status()}
    assert known["triggerer"].count == 1
    assert "exit status -9" in known["triggerer"].last_exit
    assert "database is locked" in known["triggerer"].last_exit
    assert known["scheduler"].count == 0
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert "triggerer died" in line


def test_a_start_that_fails_leaves_the_component_known_as_dead(stack: SleepyStack) -> None:
    for process in stack.started:
        process.kill()
        process.wait()
    real = Stack(stack.settings, {})
    stack.log_path("scheduler").mkdir()
    with pytest.raises(IsADirectoryError):
        real.revive("scheduler", {})
    assert real.is_dead("scheduler")


def test_what_was_ended_on_purpose_stays_ended(stack: SleepyStack, supervisor: Supervisor) -> None:
    stack.kill("scheduler")
    before = len(stack.started)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        supervisor.look("scheduler")
        time.sleep(0.05)
    assert len(stack.started) == before


def test_troubles_name_what_is_dead_without_asking_a_server(stack: SleepyStack) -> None:
    assert stack.troubles() == ()
    stack.kill("triggerer")
    assert [(each.name, each.pid) for each in stack.troubles()] == [("triggerer", None)]


def test_the_health_page_says_503_while_a_component_is_not_healthy(stack: SleepyStack) -> None:
    url = serve_health(stack)
    answer = httpx.get(url, trust_env=False)
    assert answer.status_code == 503
    assert set(answer.json()["components"]) == set(COMPONENTS)
    assert httpx.get(url.replace("/health", "/"), trust_env=False).status_code == 404
