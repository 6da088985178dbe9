"""Run directories whose workers want the control plane to read, write or remove what is not theirs, or to hang."""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from pathlib import Path

import fsspec
import pytest
from tests.contract import values

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.adapters.files.trees import LocalTree, RemoteTree, Tree
from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult, Control, ControlAction
from frenzy.core.values.telemetry import latest_text, lines_of
from frenzy.ports import TelemetryCursor, telemetry_records

KEY = "0123456789ab"
START = TelemetryCursor()
RESULT = AttemptResult(exit_code=0, last_step=10, total_steps=10)
SECRET = "fernet-key-of-the-installation"


@pytest.fixture
def store(tmp_path: Path) -> FsspecRunStore:
    return FsspecRunStore(str(tmp_path / "runs"))


@pytest.fixture
def attempt(store: FsspecRunStore) -> Path:
    """The folder of attempt 1."""
    store.put_spec(values.launch_spec(store.run_dir(KEY), run_key=KEY))
    return Path(store.run_dir(KEY)) / "attempt-1"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A folder of Airflow's."""
    folder = tmp_path / "airflow"
    folder.mkdir()
    (folder / "secrets.json").write_text(SECRET)
    return folder


def linked(place: Path, to: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(to)


def test_a_log_that_is_a_link_shows_nothing_of_what_it_leads_to(
    store: FsspecRunStore, attempt: Path, secrets: Path
) -> None:
    linked(attempt / "logs/rank-0.log", secrets / "secrets.json")
    assert store.log_part(KEY, 1).text == ""


def test_a_folder_of_logs_that_is_a_link_shows_nothing_either(
    store: FsspecRunStore, attempt: Path, secrets: Path
) -> None:
    (secrets / "rank-0.log").write_text(SECRET)
    linked(attempt / "logs", secrets)
    assert store.log_part(KEY, 1).text == ""


def test_results_specs_and_telemetry_are_not_read_through_links(
    store: FsspecRunStore, attempt: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "runs/victim/attempt-1"
    (victim / "telemetry/latest").mkdir(parents=True)
    (victim / "result.json").write_text(codec.dumps(RESULT))
    (victim / "spec.json").write_text((attempt / "spec.json").read_text())
    (victim / "telemetry/latest/00000.jsonl").write_text(latest_text(0, [values.step_record(1)]))
    for name in ("result.json", "spec.json", "telemetry"):
        linked(attempt / name, victim / name)
    assert store.result(KEY, 1) is None
    assert store.spec(KEY, 1) is None
    assert store.telemetry(KEY, 1, START).records == ()


def test_a_pipe_where_a_file_is_expected_hangs_nobody(store: FsspecRunStore, attempt: Path) -> None:
    (attempt / "telemetry/latest").mkdir(parents=True)
    (attempt / "logs").mkdir()
    for name in ("result.json", "logs/rank-0.log", "telemetry/latest/00000.jsonl"):
        os.mkfifo(attempt / name)
    assert store.result(KEY, 1) is None
    assert store.log_part(KEY, 1).text == ""
    assert store.telemetry(KEY, 1, START).records == ()


def test_writing_replaces_a_link_and_leaves_alone_what_it_leads_to(
    store: FsspecRunStore, attempt: Path, secrets: Path
) -> None:
    linked(attempt / "control.json", secrets / "secrets.json")
    store.put_control(KEY, 1, Control(action=ControlAction.RUN, reason=Reason(code=ReasonCode.PREEMPTED)))
    linked(attempt.parent / "attempt-2", secrets)
    store.put_result(KEY, 2, RESULT)
    assert store.result(KEY, 2) == RESULT
    assert [each.name for each in secrets.iterdir()] == ["secrets.json"]
    assert (secrets / "secrets.json").read_text() == SECRET


@pytest.mark.parametrize("keep_model", [True, False])
def test_cleaning_removes_links_and_nothing_behind_them(
    store: FsspecRunStore, attempt: Path, secrets: Path, keep_model: bool
) -> None:
    run = attempt.parent
    linked(run / "checkpoints", secrets)
    linked(attempt / "logs", secrets)
    linked(run / "model", secrets)
    os.mkfifo(attempt / "result.json")
    store.clear_checkpoints(KEY)
    assert store.clean(KEY, keep_model=keep_model, dry_run=True) < 100_000
    store.clean(KEY, keep_model=keep_model, dry_run=False)
    assert (secrets / "secrets.json").read_text() == SECRET
    assert {each.name for each in run.parent.rglob("*")} <= {run.name, "model"}


def test_a_checkpoint_behind_a_link_does_not_exist(store: FsspecRunStore, attempt: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere/step-7"
    elsewhere.mkdir(parents=True)
    (elsewhere / "manifest.json").write_text(values.manifest_text(7))
    linked(attempt.parent / "checkpoints", elsewhere.parent)
    assert store.checkpoint_steps(KEY) == ()


def make_deep(folder: Path, depth: int) -> None:
    """Folders inside each other, deeper than any path could name."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=opened)
        above, opened = opened, os.open("d", os.O_RDONLY, dir_fd=opened)
        os.close(above)
    os.close(opened)


def test_folders_deeper_than_python_recurses_keep_no_result_and_no_cleaning_from_anybody(
    store: FsspecRunStore, attempt: Path
) -> None:
    checkpoints = attempt.parent / "checkpoints"
    make_deep(checkpoints, 1_500)
    (checkpoints / "step-7").mkdir()
    (checkpoints / "step-7/manifest.json").write_text(values.manifest_text(7))
    ended = AttemptResult(exit_code=98, last_step=7, total_steps=10, checkpoint_step=7)
    (attempt / "result.json").write_text(codec.dumps(ended))
    assert store.checkpoint_steps(KEY) == (7,)
    assert store.result(KEY, 1) == ended
    store.clear_checkpoints(KEY)
    assert not checkpoints.exists()
    make_deep(attempt / "logs", 1_500)
    store.clean(KEY, keep_model=False, dry_run=False)
    assert not attempt.parent.exists()


def test_only_so_many_folders_are_looked_at_and_only_so_deep(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = LocalTree(str(attempt))
    make_deep(attempt / "deep", 40)
    (attempt / "deep" / "/".join("d" * 32) / "seen").write_text("x")
    (attempt / "deep" / "/".join("d" * 33) / "unseen").write_text("x")
    assert [each[-4:] for each in tree.sizes("deep")] == ["seen"]
    monkeypatch.setattr("frenzy.adapters.files.trees._MOST_SIZES", 20)
    assert tree.sizes("deep") == {}, "each empty folder counts"


@pytest.mark.parametrize("is_local", [True, False])
def test_of_very_many_files_only_so_many_are_counted_and_that_is_said(
    is_local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree: Tree = LocalTree(str(tmp_path)) if is_local else RemoteTree(fsspec.filesystem("memory"), str(tmp_path))
    for number in range(4):
        tree.write(f"checkpoints/{number}", b"x")
    assert len(tree.sizes("checkpoints")) == 4
    assert not caplog.records
    monkeypatch.setattr("frenzy.adapters.files.trees._MOST_SIZES", 3)
    assert len(tree.sizes("checkpoints")) == 3
    assert "checkpoints holds 3 files and folders or more" in caplog.text


def test_no_run_key_leads_out_of_the_root(store: FsspecRunStore, attempt: Path, tmp_path: Path) -> None:
    outside = tmp_path / "attempt-1"
    outside.mkdir()
    (outside / "result.json").write_text(codec.dumps(RESULT))
    assert store.result("..", 1) is None
    assert store.result(str(tmp_path), 1) is None


def test_a_result_is_read_up_to_a_bound_and_claims_only_checkpoints_that_exist(
    store: FsspecRunStore, attempt: Path
) -> None:
    (attempt / "result.json").write_text('{"detail": "' + "x" * 10**6 + '"}')
    assert store.result(KEY, 1) is None
    claimed = codec.dumps(AttemptResult(exit_code=98, last_step=5, total_steps=10, checkpoint_step=10**9))
    (attempt / "result.json").write_text(claimed)
    result = store.result(KEY, 1)
    assert result is not None
    assert result.checkpoint_step is None


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"exit_code": 1e999, "last_step": 0, "total_steps": 0}', "\udcff", "9" * 9999]
)
def test_a_result_that_is_no_document_counts_as_none(store: FsspecRunStore, attempt: Path, text: str) -> None:
    (attempt / "result.json").write_bytes(text.encode(errors="surrogateescape"))
    assert store.result(KEY, 1) is None


@pytest.mark.parametrize(
    "lie",
    [
        {"last_step": -1},
        {"total_steps": 10**9 + 1},
        {"exit_code": 2**31},
        {"first_failing_rank": -1},
        {"resumed_from_step": 10**30},
    ],
)
def test_a_result_that_no_message_could_carry_counts_as_a_crash(
    store: FsspecRunStore, attempt: Path, lie: dict[str, int]
) -> None:
    document = {"exit_code": 1, "last_step": 5, "total_steps": 10, "releases": {"torch": "2.6.0"}} | lie
    (attempt / "result.json").write_text(json.dumps(document))
    result = store.result(KEY, 1)
    assert result is not None
    assert (result.exit_code, result.last_step, result.total_steps) == (1, 0, 0)
    assert "not possible" in result.detail


@pytest.mark.parametrize("character", [b"x", b"\xff", "\U0001f600".encode(), rb"\ud800"])
def test_the_words_of_a_result_are_few_and_can_be_sent(store: FsspecRunStore, attempt: Path, character: bytes) -> None:
    written = {"exit_code": 3, "last_step": 5, "total_steps": 10, "detail": "!", "releases": {"torch": "x" * 1_000}}
    detail = character * (60_000 // len(character))
    (attempt / "result.json").write_bytes(json.dumps(written).encode().replace(b"!", detail))
    result = store.result(KEY, 1)
    assert result is not None
    assert (result.exit_code, result.releases) == (3, {})
    assert len(codec.dumps(result)) < 16 * 1024
    result.detail.encode()


def test_a_checkpoint_of_a_step_that_no_run_has_does_not_exist(store: FsspecRunStore, attempt: Path) -> None:
    for step in (7, 10**9 + 1):
        folder = attempt.parent / f"checkpoints/step-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(values.manifest_text(step))
    assert store.checkpoint_steps(KEY) == (7,)


def test_lines_that_are_no_records_of_possible_ranks_are_told_of_once(
    store: FsspecRunStore, attempt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (attempt / "telemetry/latest").mkdir(parents=True)
    records = [values.step_record(step, rank=2**16) for step in range(1, 50)]
    text = latest_text(0, records) + "no \x1b[2J record\n" + lines_of([values.step_record(1)])
    (attempt / "telemetry/latest/00000.jsonl").write_text(text)
    with caplog.at_level(logging.WARNING):
        assert store.telemetry(KEY, 1, START).records == (values.step_record(1),)
    assert len(caplog.records) == 1
    assert "50 lines" in caplog.text


def test_only_so_much_telemetry_is_read_in_one_look_and_the_rest_in_the_next(
    store: FsspecRunStore, attempt: Path
) -> None:
    (attempt / "telemetry/latest").mkdir(parents=True)
    for chunk in range(20):
        line = f"{codec.dumps(values.step_record(chunk + 1))}{' ' * (4 * 1024**2 - 1_000)}\n"
        (attempt / f"telemetry/00000-{chunk:06d}.jsonl").write_text(line)
    (attempt / "telemetry/latest/00000.jsonl").write_text(latest_text(20, [values.step_record(20)]))
    first = store.telemetry(KEY, 1, START)
    assert 0 < len(first.records) < 20
    assert len(first.records) + len(store.telemetry(KEY, 1, first.cursor).records) == 20


def test_lines_that_are_no_records_cost_next_to_nothing_however_many(store: FsspecRunStore, attempt: Path) -> None:
    (attempt / "telemetry/latest").mkdir(parents=True)
    first = attempt / "telemetry/00000-000000.jsonl"
    first.write_text("{}\n" * (4 * 1024**2 // 3))
    for chunk in range(1, 10):
        os.link(first, attempt / f"telemetry/00000-{chunk:06d}.jsonl")
    text = lines_of([values.step_record(1)]) + "{}\n" * 100 + lines_of([values.step_record(2)])
    (attempt / "telemetry/00000-000010.jsonl").write_text(text)
    (attempt / "telemetry/latest/00000.jsonl").write_text(latest_text(11, []))
    began_s = time.process_time()
    assert store.telemetry(KEY, 1, START).records == (values.step_record(1),), "after 100 bad lines none is read"
    assert time.process_time() - began_s < 2.0


def test_telemetry_comes_in_pages_in_which_all_nodes_are_equally_far(store: FsspecRunStore, attempt: Path) -> None:
    write_telemetry(attempt, num_chunks=60)
    page = store.telemetry(KEY, 1, START)
    assert len(page.records) == pytest.approx(20_000, abs=500)
    assert {len([each for each in page.records if each.rank == rank]) for rank in (0, 1)} == {len(page.records) // 2}
    assert len(list(telemetry_records(store, KEY, 1))) == 2 * 60 * 250


def test_a_sample_of_telemetry_is_spread_over_the_whole_attempt(store: FsspecRunStore, attempt: Path) -> None:
    write_telemetry(attempt, num_chunks=60)
    sample = store.telemetry_sample(KEY, 1, most_records=5_000)
    assert 2_500 <= len(sample) <= 5_000
    steps, others = ([each.step for each in sample if each.rank == rank] for rank in (0, 1))
    assert steps == others == sorted(steps)
    gaps = [later - step for step, later in itertools.pairwise([0, *steps])]
    assert max(gaps) <= 60 * 250 / 4
    assert steps[-1] == 60 * 250


def write_telemetry(attempt: Path, *, num_chunks: int) -> None:
    """So many chunks of 250 steps by each of two nodes with a rank each."""
    (attempt / "telemetry/latest").mkdir(parents=True)
    for node, chunk in itertools.product((0, 1), range(num_chunks)):
        records = [values.step_record(step, rank=node) for step in range(1 + 250 * chunk, 251 + 250 * chunk)]
        (attempt / f"telemetry/{node:05d}-{chunk:06d}.jsonl").write_text(lines_of(records))
        if chunk == num_chunks - 1:
            (attempt / f"telemetry/latest/{node:05d}.jsonl").write_text(latest_text(num_chunks, records[-32:]))


def test_manifests_are_read_up_to_a_bound_and_the_newest_first(store: FsspecRunStore, attempt: Path) -> None:
    checkpoints = attempt.parent / "checkpoints"
    for step, num_bytes in ((1, 200), (2, 10**6), (3, 10**6), (4, 10**6), (5, 10**6), (6, 2 * 10**6), (7, 200)):
        (checkpoints / f"step-{step}").mkdir(parents=True)
        (checkpoints / f"step-{step}/manifest.json").write_text(values.manifest_text(step).rjust(num_bytes))
    assert store.checkpoint_steps(KEY) == (3, 4, 5, 7), "4 MiB are read together; what is longer than 1 MiB is cut"
    for step in range(8, 300):
        (checkpoints / f"step-{step}").mkdir()
        (checkpoints / f"step-{step}/manifest.json").write_text(values.manifest_text(step))
    assert store.checkpoint_steps(KEY) == tuple(range(198, 300))


def test_nothing_that_is_nested_deep_keeps_a_result_from_anybody(store: FsspecRunStore, attempt: Path) -> None:
    """Some depths can be parsed, but no message can show them."""
    for depth in (*range(700, 1001), 100_000):
        (attempt / "result.json").write_text(
            codec.dumps(RESULT).replace('"exit_code": 0', f'"exit_code": {"[" * depth}{"]" * depth}')
        )
        assert store.result(KEY, 1) is None


def test_a_log_takes_only_so_much_of_what_a_run_wrote(
    store: FsspecRunStore, attempt: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (attempt / "result.json").write_text(json.dumps({"exit_code": "x" * 60_000}))
    assert store.result(KEY, 1) is None
    assert "cannot be read" in caplog.text
    assert len(caplog.text) < 1_000


def test_a_log_moves_no_cursor(store: FsspecRunStore, attempt: Path) -> None:
    (attempt / "logs").mkdir()
    (attempt / "logs/rank-0.log").write_bytes(b"one\r\ntwo\x1b[2J\x1b]0;title\x07\tthree\r50 %\n")
    assert store.log_part(KEY, 1).text == "one\ntwo[2J]0;title\tthree\n50 %\n"


def test_what_an_earlier_attempt_wrote_for_a_later_one_is_forgotten(store: FsspecRunStore, attempt: Path) -> None:
    later = attempt.parent / "attempt-2"
    (later / "telemetry/latest").mkdir(parents=True)
    (later / "result.json").write_text(codec.dumps(RESULT))
    (later / "telemetry/latest/00000.jsonl").write_text(latest_text(0, [values.step_record(9)]))
    store.clear_reports(KEY, 2)
    assert store.result(KEY, 2) is None
    assert store.telemetry(KEY, 2, START).records == ()


def test_what_launchers_note_is_not_in_the_run_directory(store: FsspecRunStore, attempt: Path) -> None:
    store.put_note(KEY, 1, "stopped", "yes")
    assert store.note(KEY, 1, "stopped") == "yes"
    assert [each.name for each in attempt.parent.rglob("*stopped*")] == []


def test_a_model_s_file_that_is_a_link_is_neither_listed_nor_handed_on(store: FsspecRunStore, secrets: Path) -> None:
    linked(Path(store.run_dir(KEY)) / "model/config.json", secrets / "secrets.json")
    assert (store.model_files(KEY), store.model_file(KEY, "config.json")) == ({}, None)


def test_a_model_s_file_that_became_a_link_hands_on_nothing_of_what_it_leads_to(
    store: FsspecRunStore, secrets: Path
) -> None:
    place = Path(store.run_dir(KEY)) / "model/config.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    found = store.model_file(KEY, "config.json")
    linked(place, secrets / "secrets.json")
    assert found is not None
    with pytest.raises(OSError):
        b"".join(found.parts(0, 2))


def test_a_model_s_folder_that_is_a_link_is_no_model(store: FsspecRunStore, secrets: Path) -> None:
    linked(Path(store.run_dir(KEY)) / "model", secrets)
    assert (store.model_files(KEY), store.model_file(KEY, "secrets.json")) == ({}, None)
