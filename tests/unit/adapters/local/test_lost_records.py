"""Workers are where the launcher says, whatever becomes of its files, of the run directory and of the disk."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract import values
from tests.contract.eventually import eventually
from tests.unit.adapters.local_bench import Bench, are_gone, kill_supervisor, stranger

from frenzy.adapters.local.attempt_home import SupervisorRecord, private_folder, user_folder
from frenzy.core.values import codec
from frenzy.core.values.hardware import DeviceKind
from frenzy.ports import WorkersState

DAMAGED = {
    "empty": b"",
    "truncated": b'{"schema_version": 1, "host": "h',
    "binary": b"\xff\x00\xfe" * 9,
    "deep": b"[" * 100_000,
    "a number of too many digits": b'{"pid": ' + b"9" * 5000 + b"}",
    "of a later release": b'{"schema_version": 99}',
    "of another kind": b'{"schema_version": 1, "colour": "blue"}',
    "endless": b'{"host": "' + b"x" * 200_000 + b'"}',
    "a process that cannot be": json.dumps(
        {"host": "h", "boot": "b", "namespace": "n", "pid": -1, "started": None, "started_s": float("nan")}
    ).encode(),
    "a deadline that never comes": b'{"deadline_s": NaN}',
}
LOSSES: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "a folder": lambda place: (place.unlink(missing_ok=True), place.mkdir()),
    **{name: lambda place, damage=damage: place.write_bytes(damage) for name, damage in DAMAGED.items()},
}
ENDS: dict[str, float] = {"at once": 0.0, "at a checkpoint": 60.0}


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process, or of one that it starts, takes a byte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# records that are lost or damaged


@pytest.mark.parametrize("loss", LOSSES)
def test_workers_whose_record_is_damaged_are_alive_are_not_started_twice_and_can_be_stopped(
    bench: Bench, loss: str
) -> None:
    spec = bench.spec("wait", ranks=1)
    bench.started(spec)
    LOSSES[loss](bench.home(spec).folder / "process.json")
    other = bench.other()
    assert other.account(spec).state is WorkersState.ALIVE
    other.launch(spec)
    other.stop(spec, grace_s=60)
    assert bench.result(spec).exit_code == 98
    assert len(bench.starts()) == 1


@pytest.mark.parametrize("loss", [each for each in LOSSES if each != "lost"])
def test_a_damaged_request_to_stop_is_a_request_that_raises_nowhere(bench: Bench, loss: str) -> None:
    spec = bench.spec("wait")
    bench.started(spec)
    LOSSES[loss](bench.home(spec).folder / "stop.json")
    assert bench.other().state(spec) in (WorkersState.ALIVE, WorkersState.GONE)
    assert bench.result(spec).exit_code == 98


def test_a_record_that_was_lost_is_written_again_while_its_workers_live(bench: Bench) -> None:
    spec = bench.spec("wait")
    pids = bench.started(spec)
    shutil.rmtree(bench.state)
    assert bench.launcher.state(spec) is WorkersState.ALIVE
    bench.launcher.stop(spec, grace_s=60)
    eventually(lambda: are_gone(pids) and bench.launcher.state(spec) is not WorkersState.ALIVE)
    assert bench.launcher.state(spec) is WorkersState.GONE


def test_a_damaged_record_without_a_process_is_of_workers_that_are_gone_and_never_start_again(bench: Bench) -> None:
    spec = bench.spec("wait")
    bench.home(spec).put_record(SupervisorRecord.here())
    (bench.home(spec).folder / "process.json").write_bytes(b"")
    assert bench.launcher.state(spec) is WorkersState.GONE
    bench.launcher.launch(spec)
    assert bench.launcher.state(spec) is WorkersState.GONE
    assert bench.starts() == []


def test_a_record_that_the_disk_does_not_give_proves_nothing(bench: Bench) -> None:
    spec = bench.spec("wait")
    place = bench.home(spec).folder / "process.json"
    place.parent.mkdir(parents=True)
    place.symlink_to(place)
    assert bench.launcher.state(spec) is WorkersState.UNKNOWN
    with stranger(spec):
        assert bench.launcher.state(spec) is WorkersState.ALIVE
    place.unlink()


# the run directory


@pytest.mark.parametrize("end", ENDS)
def test_workers_whose_run_directory_was_deleted_are_alive_and_can_be_stopped(bench: Bench, end: str) -> None:
    spec = bench.spec("wait", ranks=1)
    pids = bench.started(spec)
    shutil.rmtree(spec.run_dir)
    assert bench.other().state(spec) is WorkersState.ALIVE
    bench.other().stop(spec, grace_s=ENDS[end])
    assert bench.result(spec).exit_code != 0
    assert are_gone(pids)


def test_a_supervisor_that_cannot_leave_a_result_ends_nevertheless(bench: Bench) -> None:
    spec = bench.spec("wait", ranks=1)
    pids = [*bench.started(spec), bench.supervisor(spec)]
    shutil.rmtree(spec.run_dir)
    Path(spec.run_dir).write_text("in the way")
    bench.launcher.stop(spec, grace_s=60)
    eventually(lambda: bench.launcher.state(spec) is WorkersState.GONE)
    assert are_gone(pids)


def test_a_job_that_puts_pipes_and_links_where_logs_go_delays_and_diverts_nothing(bench: Bench) -> None:
    spec, elsewhere = bench.spec("wait"), bench.folder / "precious"
    bench.home(spec).logs.mkdir(parents=True)
    os.mkfifo(bench.home(spec).logs / "supervisor.log")
    (bench.home(spec).logs / "launcher.log").symlink_to(elsewhere)
    bench.started(spec)
    assert not elsewhere.exists()


# a disk that takes nothing


@pytest.mark.parametrize("end", ENDS)
def test_a_full_disk_keeps_no_workers_from_being_stopped(bench: Bench, end: str) -> None:
    spec = bench.spec("wait", ranks=2)
    pids = bench.started(spec)
    with full_disk():
        bench.launcher.stop(spec, grace_s=ENDS[end])
    assert bench.result(spec).exit_code == (98 if ENDS[end] else 137)
    assert are_gone(pids)


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
def test_a_full_disk_keeps_no_stubborn_workers_of_a_dead_supervisor_from_being_stopped(
    bench: Bench, grace_s: float
) -> None:
    spec = bench.spec("stubborn", ranks=2)
    pids = bench.started(spec)
    kill_supervisor(bench, spec)
    with full_disk():
        bench.launcher.stop(spec, grace_s=grace_s)
    eventually(lambda: bench.launcher.state(spec) is WorkersState.GONE, within_s=20)
    assert are_gone(pids)


@pytest.mark.parametrize("end", ENDS)
def test_a_state_folder_that_is_none_any_more_keeps_no_workers_from_being_stopped(bench: Bench, end: str) -> None:
    spec = bench.spec("wait", ranks=1)
    pids = bench.started(spec)
    shutil.rmtree(bench.state)
    bench.state.write_text("in the way")
    assert bench.launcher.state(spec) is WorkersState.ALIVE
    bench.other().stop(spec, grace_s=ENDS[end])
    eventually(lambda: are_gone(pids))
    with pytest.raises(OSError, match="workers"):
        bench.other().launch(spec)
    bench.state.unlink()


def test_an_older_request_with_more_time_does_not_outlive_one_that_could_not_be_written(bench: Bench) -> None:
    spec = bench.spec("wait")
    bench.started(spec)
    kill_supervisor(bench, spec)
    bench.home(spec).request_stop(3600)
    with full_disk():
        bench.launcher.stop(spec, grace_s=0.2)
    assert bench.home(spec).stop_request() is None


def test_workers_that_were_stopped_on_a_full_disk_before_they_started_never_start(bench: Bench) -> None:
    spec = bench.spec("wait")
    with full_disk():
        bench.launcher.stop(spec, grace_s=0)
    assert bench.launcher.state(spec) is WorkersState.GONE
    bench.launcher.launch(spec)
    assert bench.starts() == []


def test_a_disk_that_takes_no_record_starts_no_workers(bench: Bench) -> None:
    spec = bench.spec("wait")
    bench.store.put_spec(spec)
    with full_disk(), pytest.raises(Exception, match="could not be started"):
        bench.launcher.launch(spec)
    assert bench.launcher.state(spec) is WorkersState.NOT_STARTED
    assert bench.starts() == []


# what is left of ended attempts


def test_workers_of_an_ended_attempt_that_live_without_a_record_are_left_over_and_are_ended(bench: Bench) -> None:
    spec = bench.spec("stubborn", ranks=1)
    pids = bench.started(spec)
    shutil.rmtree(bench.state)
    assert bench.launcher.remains() == ((spec.run_key, spec.attempt),)
    bench.launcher.remove(spec.run_key, spec.attempt)
    eventually(lambda: are_gone(pids))


def test_records_of_removed_attempts_are_forgotten_after_a_month(bench: Bench) -> None:
    old, new = bench.spec("finish"), bench.spec("finish")
    for spec in (old, new):
        bench.launcher.launch(spec)
        bench.result(spec)
    assert len(bench.launcher.remains()) == 2
    bench.launcher.remove(old.run_key, old.attempt)
    long_ago = time.time() - 31 * 86400
    os.utime(bench.home(old).folder, (long_ago, long_ago))
    bench.launcher.remove(new.run_key, new.attempt)
    assert bench.launcher.remains() == ()
    assert [each.name for each in bench.state.iterdir()] == [bench.home(new).folder.name]
    assert bench.launcher.state(new) is WorkersState.GONE
    bench.specs.remove(old)


# folders


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("open", "link"):
        with pytest.raises(PermissionError, match=name):
            private_folder(tmp_path / name)
    assert private_folder(tmp_path / "real").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.getuid() == 0:
        os.chown(tmp_path, 12345, 12345)
    with pytest.raises(PermissionError, match="another user's"):
        private_folder(tmp_path if os.getuid() == 0 else Path("/usr"))


def test_launching_in_a_state_folder_that_is_a_link_starts_nothing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    bench.state.symlink_to(tmp_path / "theirs")
    spec = bench.spec("wait")
    with pytest.raises(PermissionError, match="workers"):
        bench.launcher.launch(spec)
    assert bench.starts() == []
    bench.state.unlink()


def test_a_job_does_not_choose_where_gpus_are_locked(bench: Bench, tmp_path: Path) -> None:
    spec = bench.spec("wait", XDG_STATE_HOME=str(tmp_path / "of-the-job"))
    spec = replace(spec, gpu=replace(spec.gpu, kind=DeviceKind.CUDA))
    (tmp_path / "frenzy").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="frenzy"):
        bench.other(XDG_STATE_HOME=str(tmp_path)).launch(spec)
    assert bench.starts() == []


def test_all_installations_of_a_user_share_one_folder(tmp_path: Path) -> None:
    one, other = ({"XDG_STATE_HOME": str(tmp_path), "FRENZY_HOME": home} for home in ("/one", "/other"))
    assert user_folder(one) == user_folder(other) == tmp_path / "frenzy"


# any files, any processes


def texts_of(kind: str) -> st.SearchStrategy[bytes | None]:
    here = replace(SupervisorRecord.here(), pid=2**22, started=1, started_s=1.0)
    whole = [
        codec.dumps(each).encode()
        for each in (here, replace(here, pid=None), replace(here, boot="earlier"), replace(here, host="elsewhere"))
    ]
    known = whole if kind == "process.json" else [b'{"schema_version": 1, "deadline_s": 1.0}']
    cut = st.sampled_from(known).flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end]))
    return st.none() | st.sampled_from([*known, *DAMAGED.values()]) | cut | st.binary(max_size=40)


@settings(max_examples=60)
@given(record=texts_of("process.json"), request=texts_of("stop.json"), lives=st.booleans())
def test_no_files_hide_a_live_process_and_none_raise(
    tmp_path_factory: pytest.TempPathFactory, record: bytes | None, request: bytes | None, lives: bool
) -> None:
    bench = Bench(tmp_path_factory.mktemp("any"))
    key = uuid.uuid4().hex[:12]
    spec = values.launch_spec(bench.store.run_dir(key), run_key=key)
    folder = bench.home(spec).folder
    folder.mkdir(parents=True)
    for name, text in (("process.json", record), ("stop.json", request)):
        if text is not None:
            (folder / name).write_bytes(text)
    with stranger(spec) if lives else nullcontext():
        state = bench.launcher.state(spec)
    if lives:
        assert state is WorkersState.ALIVE
    elif record is None:
        assert state is WorkersState.NOT_STARTED
    else:
        assert state in (WorkersState.GONE, WorkersState.UNKNOWN)
