"""Workers' processes are found though they hide, or another release or home began them."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.eventually import eventually
from tests.unit.adapters.local_bench import Bench, are_gone, benched, kill_supervisor, stranger

from frenzy.adapters.local.worker_processes import RUN_DIR_VARIABLE, start_ticks
from frenzy.ports import WorkersState


def test_ranks_without_an_environment_end_with_their_node_launcher(bench: Bench) -> None:
    spec = bench.spec("wait", ranks=2, FAKE_CLEAN="away")
    pids = bench.started(spec)
    os.kill(pids[0], signal.SIGKILL)
    assert bench.result(spec).exit_code == 137
    assert are_gone(pids)


def test_ranks_without_an_environment_are_stopped_with_the_workers_of_a_dead_supervisor(bench: Bench) -> None:
    spec = bench.spec("stubborn", ranks=2, FAKE_CLEAN="away")
    pids = bench.started(spec)
    kill_supervisor(bench, spec)
    bench.launcher.stop(spec, grace_s=0.2)
    eventually(lambda: are_gone(pids))


def test_orphans_without_an_environment_are_found_by_the_session_of_their_dead_supervisor(bench: Bench) -> None:
    spec = bench.spec("wait", ranks=2, FAKE_CLEAN="here")
    pids = bench.started(spec)
    kill_supervisor(bench, spec)
    os.kill(pids[0], signal.SIGKILL)
    eventually(lambda: start_ticks(pids[0]) is None)
    assert bench.launcher.state(spec) is WorkersState.ALIVE
    bench.launcher.stop(spec, grace_s=0.2)
    eventually(lambda: are_gone(pids))
    eventually(lambda: bench.launcher.state(spec) is WorkersState.GONE)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of a system call")
def test_a_process_that_ended_only_its_first_thread_is_no_zombie() -> None:
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    process = subprocess.Popen([sys.executable, "-c", f"{code}; ctypes.CDLL(None).syscall(60, 0)"])
    state = Path(f"/proc/{process.pid}/stat")
    eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")
    assert start_ticks(process.pid) is not None
    process.kill()
    process.wait()


def test_processes_of_the_release_before_are_found_and_stopped(bench: Bench) -> None:
    spec = bench.spec("wait")
    with stranger(spec, **{RUN_DIR_VARIABLE: ""}) as process:
        assert bench.launcher.state(spec) is WorkersState.ALIVE
        bench.launcher.stop(spec, grace_s=60)
        assert process.wait(30) == -signal.SIGTERM


def test_two_installations_with_the_same_run_key_do_not_see_each_others_workers(bench: Bench, tmp_path: Path) -> None:
    spec = bench.spec("wait", ranks=1)
    pids = bench.started(spec)
    with benched(tmp_path / "second") as second:
        twin = second.spec("wait", key=spec.run_key)
        assert (twin.run_key, twin.attempt) == (spec.run_key, spec.attempt)
        assert second.launcher.state(twin) is WorkersState.NOT_STARTED
        assert second.launcher.remains() == ()
        second.launcher.stop(twin, grace_s=0)
    assert bench.launcher.state(spec) is WorkersState.ALIVE
    assert all(start_ticks(pid) for pid in pids)
