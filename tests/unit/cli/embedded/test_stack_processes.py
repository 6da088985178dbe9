from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from frenzy.cli.embedded.stack_processes import (
    end_processes,
    interrupted_by,
    kill_processes,
    marked_processes,
    read_record,
    write_record,
)

MARK = "FRENZY_TEST_MARK"
# A leader with one child in its session and one that left it; says their pids once both run their own program (a
# process has no environment for a moment while it changes its program), then sleeps.
FAMILY = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
children = [subprocess.Popen(sleeper, stdout=subprocess.PIPE, start_new_session=each) for each in (False, True)]
for each in children:
    each.stdout.readline()
print(*[each.pid for each in children], flush=True)
time.sleep(600)
"""
DEAF = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(0, flush=True); time.sleep(600)"


class Family:
    """A started leader with the processes it started."""

    def __init__(self, code: str, folder: Path) -> None:
        environ = {MARK: str(folder), "PATH": "/usr/bin:/bin"}
        self.leader = subprocess.Popen(
            [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.leader.stdout is not None
        self.pids = [int(text) for text in self.leader.stdout.readline().split()]
        self.record = write_record(folder, "family", self.leader.pid)

    def close(self) -> None:
        kill_processes([psutil.Process(pid) for pid in self.pids if pid and psutil.pid_exists(pid)])
        self.leader.kill()
        self.leader.communicate()


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(FAMILY, tmp_path)
    yield made
    made.close()


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[Family]:
    made = Family(DEAF, tmp_path)
    yield made
    made.close()


def test_a_record_is_read_back(family: Family, tmp_path: Path) -> None:
    assert read_record(tmp_path, "family") == family.record


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 1}', "not json"])
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text, encoding="utf-8")

    assert read_record(tmp_path, "broken") is None


def test_a_session_is_its_leader_and_what_stayed_in_it(family: Family) -> None:
    inside, outside = family.pids
    members = {each.pid for each in family.record.members()}

    assert members == {family.leader.pid, inside}
    assert outside not in members


def test_the_rest_of_a_session_is_found_after_its_leader_died(family: Family) -> None:
    family.leader.kill()
    family.leader.wait()

    assert [each.pid for each in family.record.members()] == [family.pids[0]]
    assert not family.record.is_alive()


def test_a_dead_leader_that_nobody_waited_for_is_not_alive(family: Family) -> None:
    family.leader.send_signal(signal.SIGKILL)
    psutil.wait_procs([psutil.Process(family.pids[0])], timeout=0.1)
    assert family.leader.wait(10) == -signal.SIGKILL

    assert not family.record.is_alive()


@pytest.mark.parametrize("changed", [{"ticks": 1}, {"boot": "an earlier one"}])
def test_another_process_with_the_recorded_pid_is_left_alone(family: Family, changed: dict[str, Any]) -> None:
    reused = replace(family.record, **changed)

    assert not reused.is_alive()
    assert reused.members() == []
    assert reused.leader() == []


def test_what_another_process_left_of_its_session_after_a_boot_is_left_alone(family: Family) -> None:
    family.leader.kill()
    family.leader.wait()

    assert replace(family.record, boot="an earlier one").members() == []


@pytest.mark.parametrize("step_s", [-86_400, -6, 6, 3_600])
def test_a_process_stays_itself_when_the_clock_is_set(family: Family, step_s: float) -> None:
    recorded = replace(family.record, started_s=family.record.started_s + step_s)

    assert recorded.is_alive()
    assert [each.pid for each in recorded.leader()] == [family.leader.pid]
    assert family.leader.pid in {each.pid for each in recorded.members()}


def test_marked_processes_are_found_wherever_they_went(family: Family, tmp_path: Path) -> None:
    found = {each.pid for each in marked_processes(MARK, str(tmp_path))}

    assert found == {family.leader.pid, *family.pids}
    assert marked_processes(MARK, str(tmp_path / "another")) == []


def test_a_process_that_ignores_the_request_is_killed_after_its_grace(deaf: Family) -> None:
    end_processes(deaf.record.leader(), grace_s=0.2)

    assert not deaf.record.is_alive()


def test_ending_processes_that_are_gone_is_no_error(family: Family) -> None:
    processes = family.record.members()
    kill_processes(processes)

    end_processes(processes, grace_s=0.2)

    assert family.record.members() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_like_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupted_by(signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
