"""The local launcher under trouble: real processes, really killed."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.eventually import eventually
from tests.unit.adapters.local_bench import Bench

from frenzy.adapters.local.attempt_home import SupervisorRecord
from frenzy.adapters.local.worker_processes import start_ticks
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.run_files import scratch_prefix
from frenzy.ports import WorkersState


def test_workers_that_end_well_leave_their_own_result(bench: Bench) -> None:
    spec = bench.spec("finish", ranks=2)
    bench.launcher.launch(spec)
    assert bench.result(spec).exit_code == 0


def test_a_request_to_stop_reaches_the_trainer(bench: Bench) -> None:
    spec = bench.spec("wait", ranks=2)
    bench.started(spec)
    bench.launcher.stop(spec, grace_s=60)
    assert bench.result(spec).exit_code == 98


def test_workers_that_ignore_the_request_are_killed_with_all_their_ranks(bench: Bench) -> None:
    spec = bench.spec("stubborn", ranks=3)
    pids = bench.started(spec)
    bench.launcher.stop(spec, grace_s=0.5)
    result = bench.result(spec)
    assert (result.exit_code, result.detail) == (137, "the node launcher did not stop in time and was killed")
    assert [start_ticks(pid) for pid in pids] == [None] * 4


def test_nothing_of_killed_workers_is_left_among_temporary_files(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    bench.launcher = bench.other()
    spec = bench.spec("stubborn", ranks=1)
    own, of_another = (tmp_path / f"{scratch_prefix(key, 1)}x" for key in (spec.run_key, "another"))
    for each in (own, of_another):
        (each / "store").mkdir(parents=True)
    bench.started(spec)
    bench.launcher.stop(spec, grace_s=0)
    assert bench.result(spec).exit_code == 137
    eventually(lambda: not own.exists())
    assert of_another.exists()


def test_an_earlier_deadline_wins(bench: Bench) -> None:
    spec = bench.spec("stubborn")
    bench.started(spec)
    bench.launcher.stop(spec, grace_s=3600)
    bench.launcher.stop(spec, grace_s=0)
    assert bench.result(spec).exit_code == 137


def test_a_node_launcher_that_was_killed_leaves_a_result_and_no_rank(bench: Bench) -> None:
    spec = bench.spec("wait", ranks=2)
    bench.store.put_spec(spec)
    pids = bench.started(spec)
    os.kill(pids[0], signal.SIGKILL)
    result = bench.result(spec)
    assert (result.exit_code, result.detail) == (137, "the node launcher was killed by SIGKILL")
    assert [start_ticks(pid) for pid in pids] == [None] * 3


def test_a_node_launcher_that_leaves_nothing_gets_a_result_with_its_code(bench: Bench) -> None:
    spec = bench.spec("silent")
    bench.launcher.launch(spec)
    result = bench.result(spec)
    assert result.exit_code == 3 and "left no result" in result.detail


def test_a_command_that_cannot_run_leaves_a_result(bench: Bench) -> None:
    spec = bench.spec("wait")
    broken = bench.other(("/no/such/command",))
    broken.launch(spec)
    result = bench.result(spec)
    assert result.exit_code == 1 and "could not be started" in result.detail


def test_workers_outlive_a_killed_supervisor_and_can_still_be_stopped(bench: Bench) -> None:
    spec = bench.spec("wait", ranks=2)
    pids = bench.started(spec)
    os.kill(bench.supervisor(spec), signal.SIGKILL)
    eventually(lambda: start_ticks(bench.supervisor(spec)) is None)
    assert bench.launcher.state(spec) is WorkersState.ALIVE
    bench.launcher.stop(spec, grace_s=60)
    assert bench.result(spec).exit_code == 98
    assert [start_ticks(pid) for pid in pids] == [None] * 3


def test_a_request_whose_supervisor_died_before_it_acted_is_enforced_by_who_looks(bench: Bench) -> None:
    spec = bench.spec("stubborn", ranks=1)
    bench.started(spec)
    os.kill(bench.supervisor(spec), signal.SIGKILL)
    eventually(lambda: start_ticks(bench.supervisor(spec)) is None)
    bench.home(spec).request_stop(0.2)
    assert bench.result(spec).exit_code == 137


def test_stubborn_workers_of_a_killed_supervisor_are_killed(bench: Bench) -> None:
    spec = bench.spec("stubborn", ranks=2)
    pids = bench.started(spec)
    os.kill(bench.supervisor(spec), signal.SIGKILL)
    eventually(lambda: start_ticks(bench.supervisor(spec)) is None)
    bench.launcher.stop(spec, grace_s=0.2)
    result = bench.result(spec)
    assert (result.exit_code, result.detail) == (137, "the supervisor was lost; its workers were stopped")
    assert [start_ticks(pid) for pid in pids] == [None] * 3


def test_a_request_that_no_signal_brings_is_found_in_its_file(bench: Bench) -> None:
    """As from a component on another machine that shares the home."""
    spec = bench.spec("wait")
    bench.started(spec)
    bench.home(spec).request_stop(60)
    assert bench.result(spec).exit_code == 98


def test_a_new_launcher_finds_the_workers_of_an_old_one(bench: Bench) -> None:
    spec = bench.spec("wait")
    bench.started(spec)
    other = bench.other()
    assert other.state(spec) is WorkersState.ALIVE
    other.stop(spec, grace_s=60)
    assert bench.result(spec).exit_code == 98


def test_concurrent_launches_start_the_workers_once(bench: Bench) -> None:
    spec = bench.spec("wait")
    references: list[str] = []
    threads = [threading.Thread(target=lambda: references.append(bench.launcher.launch(spec))) for _ in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(references) == 5 and len(set(references)) == 1
    eventually(bench.starts)
    bench.launcher.stop(spec, grace_s=60)
    bench.result(spec)
    assert len(bench.starts()) == 1


def test_the_supervisor_is_nobodys_child(bench: Bench) -> None:
    """It belongs to its own session, so nothing that ends this process's group or children ends it."""
    spec = bench.spec("wait")
    bench.started(spec)
    pid = bench.supervisor(spec)
    assert os.getsid(pid) != os.getsid(0)
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid()


def test_workers_see_the_jobs_environment_and_none_of_airflows(bench: Bench) -> None:
    others = {"AIRFLOW__CORE__FERNET_KEY": "x", "AWS_SECRET_ACCESS_KEY": "y", "PGPASSWORD": "z", "FRENZY_DATABASE": "u"}
    launcher = bench.other(**others, TOKEN_HERE="s3cret")
    spec = bench.spec("wait", GREETING="hello")
    spec = replace(spec, job=replace(spec.job, secrets={"TOKEN": "env:TOKEN_HERE"}))
    launcher.launch(spec)
    pid = int(eventually(bench.starts)[0].split()[0])
    seen = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line)
    assert (seen["GREETING"], seen["TOKEN"], seen["OMP_NUM_THREADS"]) == ("hello", "s3cret", "1")
    assert (seen["DS_ACCELERATOR"], seen["CUDA_VISIBLE_DEVICES"]) == ("cpu", "")
    assert not {*others, "TOKEN_HERE"} & seen.keys()
    kept = [path for path in bench.folder.rglob("*") if path.is_file() and "s3cret" in path.read_text()]
    assert kept == []


@pytest.mark.parametrize("reference", ["env:NOT_SET_ANYWHERE", "k8s:secret/key", "env:AIRFLOW_CONN_X", "env:FRENZY_X"])
def test_a_secret_that_cannot_be_resolved_refuses_the_launch(bench: Bench, reference: str) -> None:
    """Those of the control plane whatever the administrator's patterns let in: env:* allows all others."""
    spec = bench.spec("wait")
    spec = replace(spec, job=replace(spec.job, secrets={"TOKEN": reference}))
    with pytest.raises(PermanentError, match="TOKEN"):
        bench.other(AIRFLOW_CONN_X="x", FRENZY_X="y").launch(spec)
    assert bench.launcher.state(spec) is WorkersState.NOT_STARTED


def test_workers_of_another_machine_are_unknown_and_of_another_boot_gone(bench: Bench) -> None:
    spec = bench.spec("wait")
    home = bench.home(spec)
    here = SupervisorRecord.here(os.getpid())
    home.put_record(replace(here, host="elsewhere"))
    assert bench.launcher.state(spec) is WorkersState.UNKNOWN
    home.put_record(replace(here, namespace="pid:[1]"))
    assert bench.launcher.state(spec) is WorkersState.UNKNOWN
    home.put_record(replace(here, boot="an earlier one"))
    assert bench.launcher.state(spec) is WorkersState.GONE


def test_a_reused_process_number_is_not_taken_for_the_supervisor(bench: Bench) -> None:
    spec = bench.spec("wait")
    home = bench.home(spec)
    here = SupervisorRecord.here(os.getpid())
    assert here.started is not None
    home.put_record(replace(here, started=here.started - 1))
    bench.launcher.stop(spec, grace_s=0)
    assert bench.launcher.state(spec) is WorkersState.GONE
