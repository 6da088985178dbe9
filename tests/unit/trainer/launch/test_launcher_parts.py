"""The launcher's parts that need no training: ranks, outcomes, the shared board, files, telemetry."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launching import Case
from torch.distributed import TCPStore

from frenzy.core.values import codec
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.job_environment import ALLOCATOR_VARIABLES
from frenzy.core.values.launch import Control, ControlAction
from frenzy.core.values.peak_memory import PeakMemory
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.telemetry import StepRecord
from frenzy.settings import CHECKOUT
from frenzy.trainer import env, files, heartbeats
from frenzy.trainer.launch import rendezvous
from frenzy.trainer.launch.child import call_in_child, fork
from frenzy.trainer.launch.local_ranks import local_ranks
from frenzy.trainer.launch.rendezvous import find_rendezvous, meet, open_rendezvous
from frenzy.trainer.launch.supervise import Supervisor
from frenzy.trainer.loop.control import ControlFile
from frenzy.trainer.outcome import (
    BadInputError,
    RankReport,
    describe_death,
    describe_failure,
    write_termination_message,
)
from frenzy.trainer.telemetry.shared_progress import SharedProgress


@pytest.mark.parametrize(
    ("error", "virtual", "code"),
    [
        (BadInputError("data.path", "x", "give another"), True, ExitCode.BAD_CONFIG_OR_DATA),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True, ExitCode.BUDGET_EXCEEDED),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), False, ExitCode.HOST_OUT_OF_MEMORY),
        (MemoryError(), True, ExitCode.BUDGET_EXCEEDED),
        (RuntimeError("std::bad_alloc"), True, ExitCode.BUDGET_EXCEEDED),
        (OSError(12, "Cannot allocate memory"), True, ExitCode.BUDGET_EXCEEDED),
        (RuntimeError("CUDA out of memory. Tried to allocate"), False, ExitCode.CUDA_OUT_OF_MEMORY),
        (RuntimeError("Connection closed by peer"), True, ExitCode.COLLECTIVE_FAILED),
        (RuntimeError("could not create a primitive"), True, ExitCode.BUDGET_EXCEEDED),
        (RuntimeError("could not create a primitive"), False, 1),
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel"), False, ExitCode.DEVICE_ASSERT),
        (PermanentError(Reason(code=ReasonCode.DRIVER_TOO_OLD)), False, ExitCode.DRIVER_TOO_OLD),
        (KeyError("input_ids"), False, 1),
    ],
)
def test_failures_become_exit_codes(error: BaseException, virtual: bool, code: int) -> None:
    found, detail = describe_failure(error, virtual=virtual)
    assert found == code
    assert detail
    assert "\n" not in detail


@pytest.mark.parametrize(
    ("exit_code", "tail", "virtual", "oom_killed", "code"),
    [
        (137, "step 4\n", False, True, ExitCode.HOST_OUT_OF_MEMORY),
        (137, "step 4\n", False, False, None),
        (137, "handled 'CUDA error: out of memory', retrying\n", False, False, None),
        (139, "handled 'CUDA error: out of memory', retrying\n" + 20 * "step\n", False, False, None),
        (135, "step 4\n", False, False, ExitCode.SHARED_MEMORY_FULL),
        (134, "ran for 600067 milliseconds before timing out.\n", False, False, ExitCode.COLLECTIVE_TIMEOUT),
        (134, "terminate called: std::bad_alloc\n", True, False, ExitCode.BUDGET_EXCEEDED),
        (139, "step 4\n", False, False, None),
        (3, "CUDA out of memory\n", False, False, None),
    ],
)
def test_deaths_by_signal_are_named_by_what_was_written_last(
    exit_code: int, tail: str, virtual: bool, oom_killed: bool, code: int | None
) -> None:
    said = describe_death(exit_code, tail, virtual=virtual, oom_killed=oom_killed)
    assert (said and said[0]) == code


def test_termination_message_fits_four_kib(tmp_path: Path) -> None:
    place = tmp_path / "message"
    write_termination_message(place, exit_code=99, detail='"ä\x00' * 5000, last_step=3)
    assert place.stat().st_size <= 4096
    assert json.loads(place.read_text())["exit_code"] == 99


def test_board_keeps_the_peak_of_each_step_apart() -> None:
    board = SharedProgress(2)
    board.offer_peak(1, 100)
    board.offer_peak(1, 70)
    assert board.take_peak(1) == 100
    board.offer_peak(1, 30)
    assert board.take_peak(1) == 30
    assert board.take_peak(1) == 0
    assert board.take_peak(0) == 0


def test_board_tells_no_step_from_step_zero() -> None:
    board = SharedProgress(1)
    assert (board.resumed_step(0), board.checkpoint_step(0), board.loss(0)) == (None, None, None)
    board.set_plan(0, total_steps=9, resumed_step=0)
    assert (board.resumed_step(0), board.checkpoint_step(0)) == (0, 0)


def test_work_in_a_child_returns_its_value_and_its_failures(tmp_path: Path) -> None:
    def run(work: Any) -> Any:
        return call_in_child(work, tmp_path / "result", log_file=tmp_path / "log")

    assert run(lambda: {"answer": 42}) == {"answer": 42}

    def refuse() -> None:
        raise BadInputError("data.path", "x", "give another")

    refused = run(refuse)
    assert refused == RankReport(exit_code=99, detail="data.path: 'x' is refused; give another")
    killed = run(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert killed.exit_code == 137


def _supervise(*mains: Any, stop: bool = False, grace_s: float = 0.2) -> Any:
    board = SharedProgress(len(mains))
    pids = {rank: fork(main) for rank, main in enumerate(mains)}
    supervisor = Supervisor(pids, board, samples_memory=False, stop_grace_s=grace_s, stop_requested=lambda: stop)
    return supervisor.wait(), board


def test_first_failing_rank_is_found_and_the_rest_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frenzy.trainer.launch.supervise._FAILURE_GRACE_S", 0.1)
    ended, _ = _supervise(lambda: time.sleep(60) or 0, lambda: 96)
    assert ended.first_failing == 1
    assert ended.codes == {0: 137, 1: 96}
    assert not ended.killed_after_grace


def test_a_rank_that_says_why_goes_before_a_peer_that_was_gone_earlier() -> None:
    ended, _ = _supervise(lambda: 92, lambda: time.sleep(0.3) or 97)
    assert ended.first_failing == 1


def test_rank_that_ignores_a_stop_is_killed_after_the_grace() -> None:
    ended, board = _supervise(lambda: time.sleep(60) or 0, stop=True)
    assert board.stop_requested
    assert ended.killed_after_grace
    assert ended.codes == {0: 137}


def test_ranks_that_end_well_are_no_failure() -> None:
    ended, _ = _supervise(lambda: 0, lambda: 98)
    assert ended.first_failing is None
    assert ended.codes == {0: 0, 1: 98}


def test_bytes_are_told_as_they_come_from_another_store(tmp_path: Path) -> None:
    for name in "ab":
        files.write_text(f"memory://{tmp_path}/in/{name}", "12345")
    told: list[int] = []
    files.fetch_folder(f"memory://{tmp_path}/in", tmp_path / "fetched", told.append)
    assert told == [5, 5]


@pytest.mark.parametrize("root", ["{folder}", "file://{folder}", "memory://{folder}"])
def test_files_work_on_paths_and_urls(tmp_path: Path, root: str) -> None:
    place = root.format(folder=tmp_path)
    assert not files.exists(f"{place}/a/b.txt")
    files.write_text(f"{place}/a/b.txt", "ä")
    files.write_text(f"{place}/a/b.txt", "ö")
    assert files.read_text(f"{place}/a/b.txt") == "ö"
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/x").write_text("x")
    (source / "last").write_text("l")
    files.publish_folder(source, f"{place}/out", last="last")
    fetched = files.fetch_folder(f"{place}/out", tmp_path / "fetched")
    assert sorted(each.name for each in fetched.rglob("*") if each.is_file()) == ["last", "x"]
    files.remove_file(f"{place}/out/last")
    files.remove_file(f"{place}/out/last")
    with pytest.raises(FileNotFoundError):
        files.read_text(f"{place}/out/last")


def _record(step: int) -> StepRecord:
    return StepRecord(
        rank=3,
        step=step,
        time_s=0.0,
        loss=1.0,
        step_time_s=1.0,
        tokens_per_s=1.0,
        peaks=PeakMemory(allocated_bytes=1, reserved_bytes=1, device_used_bytes=1),
        capacity_bytes=1,
    )


def test_control_file_is_obeyed_when_it_asks_and_ignored_when_it_is_broken(tmp_path: Path) -> None:
    place = tmp_path / "control.json"
    control = ControlFile(str(place))
    assert not control.asks_to_stop()
    place.write_text("{")
    assert not control.asks_to_stop()
    for action, stops in ((ControlAction.RUN, False), (ControlAction.CHECKPOINT_AND_STOP, True)):
        asked = Control(action=action, reason=Reason(code=ReasonCode.PREEMPTED))
        files.write_text(str(place), codec.dumps(asked))
        assert control.asks_to_stop() is stops


def test_nodes_find_the_first_nodes_port(tmp_path: Path) -> None:
    place = str(tmp_path / "rendezvous.json")
    opened = open_rendezvous(place, single_machine=True)
    found = find_rendezvous(place, signs_at=str(tmp_path / "node-00000.json"))
    assert opened.listener is not None
    opened.listener.close()
    assert (found.address, found.port, found.listener) == ("127.0.0.1", opened.port, None)


def test_node_0_says_where_the_ranks_meet_when_all_other_nodes_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Case(run_dir=str(tmp_path / "run"), data="", num_gpus=3, gpus_per_node=(1, 1, 1)).spec()
    paths, meetings = RunPaths(spec.run_dir), []

    def meanwhile(_: float) -> None:
        """Another node gets ready, and waits in turn."""
        other = 2 if files.exists(paths.ready(1, 1)) else 1
        assert not files.exists(paths.rendezvous(1))
        monkeypatch.setattr(rendezvous, "find_rendezvous", lambda place, **_: meetings.append(place))
        meet(spec, local_ranks(spec.gpus_per_node, other))

    monkeypatch.setattr(heartbeats.time, "sleep", meanwhile)
    found = meet(spec, local_ranks(spec.gpus_per_node, 0))
    assert found.listener is not None
    found.listener.close()
    assert meetings == [paths.rendezvous(1)] * 2


@pytest.mark.parametrize("family", [socket.AF_INET, *([socket.AF_INET6] if socket.has_dualstack_ipv6() else [])])
def test_ranks_of_other_nodes_meet_by_either_kind_of_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily
) -> None:
    """The pods of some clusters have no other address than one of IPv6."""
    place, loopback = str(tmp_path / "rendezvous.json"), "127.0.0.1" if family is socket.AF_INET else "::1"
    monkeypatch.setenv("FRENZY_NODE_ADDRESS", "node-0")  # what it is called is not where it listens
    opened = open_rendezvous(place, single_machine=False)
    assert opened.listener is not None
    store = TCPStore(loopback, opened.port, is_master=True, master_listen_fd=opened.listener.detach())
    TCPStore(loopback, opened.port).set("met", "yes")
    assert store.get("met") == b"yes"


def test_ranks_on_cards_share_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    alone, many = env.card_defaults({}, 1), env.card_defaults({}, 2 * cores)
    assert (alone["OMP_NUM_THREADS"], many["OMP_NUM_THREADS"]) == (str(cores), "1")


@pytest.mark.parametrize(
    ("release", "read"), [("2.0.1", 1), ("2.1.0", 2), ("2.9.1+cu128", 2), ("2.10.0", 1), ("2.13.0", 1)]
)
def test_segments_grow_by_the_names_of_the_setting_that_a_release_of_torch_reads(
    monkeypatch: pytest.MonkeyPatch, release: str, read: int
) -> None:
    monkeypatch.setattr(env, "version", {"torch": release}.__getitem__)
    chosen = env.card_defaults({}, 1)
    assert {name: chosen.get(name) for name in ALLOCATOR_VARIABLES[:read]} == dict.fromkeys(
        ALLOCATOR_VARIABLES[:read], "expandable_segments:True"
    )
    assert not chosen.keys() & set(ALLOCATOR_VARIABLES[read:])


@pytest.mark.parametrize("name", ALLOCATOR_VARIABLES)
def test_an_allocator_that_somebody_set_is_left_alone(name: str) -> None:
    assert not env.card_defaults({name: "max_split_size_mb:128"}, 1).keys() & set(ALLOCATOR_VARIABLES)


_LOADING = """
import gc, json, sys
from importlib.util import find_spec
from frenzy.core.values.job import ModelSpec
from frenzy.trainer import env
with env.importing_libraries():
    from frenzy.trainer.launch import node
    from frenzy.trainer.model.libraries import import_libraries
import_libraries(ModelSpec(config={"model_type": "gpt2"}))
unused = ("functorch.compile", "mlflow", "scipy", "peft", "bitsandbytes")
print(json.dumps([gc.isenabled(), [each for each in unused if each in sys.modules], find_spec("mlflow") is not None]))
"""


def test_a_plain_rank_is_loaded_without_what_it_never_uses_which_may_be_imported_afterwards() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOADING],
        env={**os.environ, **env.settled(virtual=True), "PYTHONPATH": str(CHECKOUT / "plugins")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [True, [], True]


def test_scipy_is_not_hidden_from_a_transformers_that_has_found_it() -> None:
    seen = """import sys, transformers
from frenzy.trainer import env
with env.importing_libraries():
    print("scipy" in sys.modules)"""
    command = [sys.executable, "-W", "ignore", "-c", seen]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT / "plugins")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
