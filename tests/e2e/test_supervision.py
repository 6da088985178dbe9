"""Everything may be killed: what died comes back, what trains on is found, what stopped resumes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.e2e.together import Run
from tests.e2e.walker import PATIENCE_S, Walker, long_training, on_slow_gpus
from tests.embedded_stack import Stack

from frenzy.cli.embedded.airflow_env import STACK_MARK
from frenzy.cli.embedded.left_jobs import left_jobs
from frenzy.cli.embedded.stack import COMPONENTS
from frenzy.cli.embedded.stack_processes import kill_processes, marked_processes
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode
from frenzy.settings import CHECKOUT

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def mortal(elastic_walker: Walker) -> Walker:
    """A user of an Airflow that these tests break, in the order they stand here, and stop in the end."""
    return elastic_walker


@pytest.fixture(scope="module")
def unmoved(mortal: Walker) -> Run:
    """A run that trains through the first two of these deaths."""
    return mortal.start("unmoved", training=long_training(), constraints=on_slow_gpus(1), elastic="off")


def pids_of(walker: Walker, view: RunView) -> set[int]:
    return {each.pid for each in walker.workers_of(view.run.run_key)}


def status_of(walker: Walker, name: str) -> tuple[int | None, bool, int]:
    found = next(each for each in walker.stack.status() if each.name == name)
    return found.pid, found.is_healthy, found.restarts.count


def healthy_page(url: str) -> dict[str, Any] | None:
    """What the supervisor's page says once all are healthy: it answers in time, however busy Airflow is."""
    page = httpx.get(url, trust_env=False)
    return page.json() if page.status_code == HTTPStatus.OK else None


def goes_on(walker: Walker, run: Run, workers: set[int]) -> RunView:
    """The same workers go on in the same attempt, and Airflow sees it."""
    view = walker.view(*run)
    assert view is not None
    view = walker.wait_for_step(*run, view.attempts[0].last_step + 5)
    assert len(view.attempts) == 1
    assert workers <= pids_of(walker, view)
    return view


def test_components_that_are_killed_come_back_and_the_trainings_never_notice(mortal: Walker, unmoved: Run) -> None:
    workers = pids_of(mortal, mortal.wait_for_step(*unmoved, 2))
    before = {name: status_of(mortal, name)[0] for name in COMPONENTS}
    for name in COMPONENTS:
        pid = before[name]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    for name in COMPONENTS:
        mortal.eventually(f"{name} is back", lambda name=name: status_of(mortal, name)[1:] == (True, 1))
    assert all(status_of(mortal, name)[0] != before[name] for name in COMPONENTS)
    log = mortal.stack.log_path("supervisor").read_text(encoding="utf-8")
    assert log.count("died") == len(COMPONENTS)
    url = mortal.stack.supervisor_state()["health_url"]
    page = mortal.eventually("all are healthy", lambda: healthy_page(url))
    assert page["components"]["triggerer"]["restarts"] == 1
    goes_on(mortal, unmoved, workers)


def test_a_start_after_the_death_of_everything_finds_who_lives_and_resumes_who_died(
    mortal: Walker, unmoved: Run
) -> None:
    survivors = pids_of(mortal, mortal.wait_for_step(*unmoved, 2))
    # Only now, so that it has to outlast nothing but the wait for its own steps.
    dying = mortal.start("dying", training={"max_steps": 40}, constraints=on_slow_gpus(1), elastic="off")
    mortal.wait_for_step(*dying, 12)  # beyond its second checkpoint
    home = str(mortal.stack.settings.home)
    kill_processes(each for each in marked_processes(STACK_MARK, home) if each.pid not in survivors)
    assert not mortal.stack.is_running()

    mortal.stack.start()

    assert mortal.stack.is_supervised()
    view = goes_on(mortal, unmoved, survivors)
    mortal.cancel(*unmoved)
    mortal.no_workers_of(view.run.run_key, 60)
    died = mortal.succeed(*dying)
    first, second = died.attempts
    assert first.outcome is not None
    assert first.outcome.code is ReasonCode.WORKERS_LOST
    assert second.result is not None
    assert (second.result.resumed_from_step or 0) >= 10


@pytest.fixture(scope="module")
def nightly(mortal: Walker) -> Run:
    """A run that trains when Airflow is stopped."""
    sections = {"training": long_training(), "checkpoint": {"every_steps": 1000, "keep": 2}}
    return mortal.start("nightly", constraints=on_slow_gpus(1), elastic="off", **sections)


def test_a_program_that_is_told_to_end_stops_its_stack_first(mortal: Walker, nightly: Run) -> None:
    view = mortal.wait_for_step(*nightly, 2)
    home = mortal.stack.settings.home
    code = (
        "import sys, time; from pathlib import Path; from tests.embedded_stack import Stack\n"
        "with Stack.running(Path(sys.argv[1])) as stack:\n    print('up', flush=True); time.sleep(600)"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code, str(home)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        assert pids_of(mortal, view), "what runs is left alone until then"
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=PATIENCE_S)
        assert live(home) == []
    finally:
        program.kill()
        program.communicate()


def test_what_is_left_at_a_stop_is_told_and_goes_on_after_the_next_start(mortal: Walker, nightly: Run) -> None:
    (line,) = (each for each in left_jobs(mortal.stack) if each.startswith("nightly: "))
    assert line.startswith("nightly: checkpoint at step ")
    assert line.endswith(" of 5000")
    saved = int(line.split()[4])

    mortal.stack.start()

    again = mortal.wait_for_step(*nightly, saved + 1, attempt=2)
    assert [each.outcome.code for each in again.attempts if each.outcome] == [ReasonCode.CHECKPOINTED_ON_REQUEST]
    mortal.cancel(*nightly)
    ended = mortal.wait_for_end(*nightly).attempts[1]
    assert ended.result is not None
    assert ended.result.resumed_from_step == saved


def test_stop_leaves_no_process_even_without_its_records(mortal: Walker) -> None:
    stack = mortal.stack
    home, port = stack.settings.home, stack.port
    assert len(live(home)) >= len(COMPONENTS)
    stack.kill("scheduler")
    for record in stack.settings.pid_folder.iterdir():
        record.unlink()

    Stack(stack.settings).stop()

    assert live(home) == []
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def live(home: Path) -> list[psutil.Process]:
    return marked_processes(STACK_MARK, str(home))
