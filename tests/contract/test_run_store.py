"""What every run directory promises, and what it makes of what workers leave there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import fsspec
import pytest
from tests.contract import values
from tests.in_memory.run_store import InMemoryRunStore

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import FIRST_POD_LOG, AttemptResult, Control, ControlAction, deepspeed_config
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import Heartbeat, StepRecord, latest_text, lines_of
from frenzy.ports import RunStore, TelemetryCursor

KEY = "0123456789ab"
RESULT = AttemptResult(exit_code=0, last_step=10, total_steps=10, final_loss=1.5)
START = TelemetryCursor()


class Workers(Protocol):
    """The side of the run directory that workers write."""

    def chunk(self, attempt: int, node: int, number: int, records: list[StepRecord]) -> None: ...
    def latest(self, attempt: int, node: int, num_chunks: int, records: list[StepRecord]) -> None: ...
    def result(self, attempt: int, result: AttemptResult) -> None: ...
    def checkpoint(self, step: int, rate: float | None = None) -> None: ...
    def log(self, attempt: int, rank: int, text: str) -> None: ...
    def heartbeat(self, attempt: int, node_rank: int, beat: Heartbeat) -> None: ...
    def tracked(self, tracked: TrackedRun) -> None: ...


class MemoryWorkers:
    def __init__(self, store: InMemoryRunStore) -> None:
        self._store = store

    def chunk(self, attempt: int, node: int, number: int, records: list[StepRecord]) -> None:
        """Known with the newest that follow."""

    def latest(self, attempt: int, node: int, num_chunks: int, records: list[StepRecord]) -> None:
        known = {(each.rank, each.step) for each in self._store.telemetry(KEY, attempt, START).records}
        for each in records:
            if (each.rank, each.step) not in known:
                self._store.write_chunk(KEY, attempt, [each])

    def result(self, attempt: int, result: AttemptResult) -> None:
        self._store.write_result(KEY, attempt, result)

    def checkpoint(self, step: int, rate: float | None = None) -> None:
        self._store.write_checkpoint(KEY, step, rate)

    def log(self, attempt: int, rank: int, text: str) -> None:
        self._store.write_log(KEY, attempt, text, rank=rank)

    def heartbeat(self, attempt: int, node_rank: int, beat: Heartbeat) -> None:
        self._store.write_heartbeat(KEY, attempt, node_rank, beat)

    def tracked(self, tracked: TrackedRun) -> None:
        self._store.write_tracked(KEY, tracked)

    def model(self, files: Mapping[str, bytes]) -> None:
        self._store.write_model(KEY, files)


class FileWorkers:
    """Writes by the paths alone, as the trainer does; knows nothing of the store."""

    def __init__(self, run_dir: str) -> None:
        self._fs, root = fsspec.core.url_to_fs(run_dir)
        self.paths = RunPaths(root)

    def put(self, path: str, text: str) -> None:
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(path, text.encode())

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(path))

    def read(self, path: str) -> str:
        return bytes(self._fs.cat_file(path)).decode()

    def remove(self, path: str) -> None:
        self._fs.rm_file(path)

    def chunk(self, attempt: int, node: int, number: int, records: list[StepRecord]) -> None:
        self.put(self.paths.telemetry_chunk(attempt, node, number), lines_of(records))

    def latest(self, attempt: int, node: int, num_chunks: int, records: list[StepRecord]) -> None:
        self.put(self.paths.latest(attempt, node), latest_text(num_chunks, records))

    def result(self, attempt: int, result: AttemptResult) -> None:
        self.put(self.paths.result(attempt), codec.dumps(result))

    def checkpoint(self, step: int, rate: float | None = None) -> None:
        manifest = self.paths.checkpoint_manifest(step)
        folder = manifest.rpartition("/")[0]
        files = {"optim.bin": "x" * 100, "state.json": "{}"}
        for name, text in files.items():
            self.put(f"{folder}/{name}", text)
        self.put(manifest, values.manifest_text(step, {name: len(text) for name, text in files.items()}, rate))

    def log(self, attempt: int, rank: int, text: str) -> None:
        self.put(self.paths.rank_log(attempt, rank), text)

    def heartbeat(self, attempt: int, node_rank: int, beat: Heartbeat) -> None:
        self.put(self.paths.heartbeat(attempt, node_rank), codec.dumps(beat))

    def tracked(self, tracked: TrackedRun) -> None:
        self.put(self.paths.tracked(tracked.kind), codec.dumps(tracked))

    def model(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            self.put(f"{self.paths.model_dir}/{name}", content.decode())


def _memory(_: Path) -> tuple[RunStore, Workers]:
    store = InMemoryRunStore()
    return store, MemoryWorkers(store)


def _at(root: str) -> tuple[FsspecRunStore, FileWorkers]:
    store = FsspecRunStore(root)
    return store, FileWorkers(store.run_dir(KEY))


FILE_STORES: dict[str, Callable[[Path], tuple[FsspecRunStore, FileWorkers]]] = {
    "local path": lambda folder: _at(f"{folder}/runs"),
    "file url": lambda folder: _at(f"file://{folder}/runs/"),
    "object store": lambda _: _at(f"memory://{uuid.uuid4().hex}/runs"),
}
STORES: dict[str, Callable[[Path], tuple[RunStore, Workers]]] = {"memory": _memory, **FILE_STORES}


@pytest.fixture(params=sorted(STORES))
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[RunStore, Workers]:
    return STORES[request.param](tmp_path)


@pytest.fixture(params=sorted(FILE_STORES))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FsspecRunStore, FileWorkers]:
    return FILE_STORES[request.param](tmp_path)


def test_nothing_is_there_before_anything_was_put(both: tuple[RunStore, Workers]) -> None:
    store, _ = both
    assert store.spec(KEY, 1) is None
    assert store.result(KEY, 1) is None
    assert store.checkpoint_steps(KEY) == ()
    assert store.log_part(KEY, 1).text == ""
    assert store.telemetry(KEY, 1, START).records == ()
    store.clear_checkpoints(KEY)


def test_the_spec_comes_back_and_may_be_put_again(both: tuple[RunStore, Workers]) -> None:
    store, _ = both
    spec = values.launch_spec(store.run_dir(KEY), run_key=KEY)
    store.put_spec(spec)
    store.put_spec(spec)
    assert store.spec(KEY, 1) == spec
    assert store.spec(KEY, 2) is None


def test_the_result_is_the_workers_own(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.result(2, RESULT)
    assert store.result(KEY, 2) == RESULT
    assert store.result(KEY, 1) is None


def record(step: int, rank: int = 0) -> StepRecord:
    return values.step_record(step, rank=rank)


def test_telemetry_is_read_once_by_step_per_rank(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.latest(1, 0, 0, [record(1), record(2), record(3), record(1, 1)])
    page = store.telemetry(KEY, 1, START)
    assert [(each.rank, each.step) for each in page.records] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    workers.latest(1, 0, 0, [record(1), record(2), record(3), record(1, 1), record(2, 1)])
    workers.latest(2, 0, 0, [record(9)])
    later = store.telemetry(KEY, 1, page.cursor)
    assert later.records == (record(2, 1),)
    assert store.telemetry(KEY, 1, later.cursor).records == ()
    assert len(store.telemetry(KEY, 1, START).records) == 5


def test_a_node_that_says_nothing_hides_no_other(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.latest(1, 1, 0, [record(1, 2), record(1, 3)])
    for cursor in (START, TelemetryCursor.start(2)):
        assert [each.rank for each in store.telemetry(KEY, 1, cursor).records] == [2, 3]
    assert [each.rank for each in store.telemetry_sample(KEY, 1, most_records=9)] == [2, 3]


def test_history_gives_what_lies_before_the_newest_once(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    workers.chunk(1, 0, 0, [record(1), record(2)])
    workers.chunk(1, 0, 1, [record(3), record(4)])
    workers.latest(1, 0, 2, [record(4), record(5)])
    page = store.telemetry(KEY, 1, TelemetryCursor.start(1))
    assert [each.step for each in page.records] == [1, 2, 3, 4, 5]
    workers.chunk(1, 0, 2, [record(5), record(6), record(7)])
    workers.latest(1, 0, 3, [record(7), record(8)])
    assert [each.step for each in store.telemetry(KEY, 1, page.cursor).records] == [6, 7, 8]


def test_history_that_was_lost_keeps_nobody_from_the_newest(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    workers.latest(1, 0, 10**9, [record(7)])
    page = store.telemetry(KEY, 1, TelemetryCursor.start(1))
    assert [each.step for each in page.records] == [7]
    assert [each.step for each in store.telemetry_sample(KEY, 1, most_records=9)] == [7]


def test_attempts_with_a_chunk_for_each_rank_are_still_read(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    for rank in (0, 1):
        workers.chunk(1, rank, 0, [record(1, rank)])
        workers.chunk(1, rank, 1, [record(2, rank)])
    found = store.telemetry(KEY, 1, START).records
    assert [(each.rank, each.step) for each in found] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert store.telemetry_sample(KEY, 1, most_records=9) == found


def test_who_watches_an_attempt_with_a_chunk_for_each_rank_sees_it_go_on(
    files: tuple[FsspecRunStore, FileWorkers],
) -> None:
    store, workers = files
    cursor, seen = TelemetryCursor.start(1), []
    for step in (1, 2, 3):
        for rank in (0, 1):
            workers.chunk(1, rank, step - 1, [record(step, rank)])
        page = store.telemetry(KEY, 1, cursor)
        cursor = page.cursor
        seen += [(each.rank, each.step) for each in page.records]
    assert seen == [(rank, step) for step in (1, 2, 3) for rank in (0, 1)]
    assert store.telemetry(KEY, 1, cursor).records == ()


def test_a_nodes_newest_sign_of_progress_counts_and_goes_with_the_reports(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    assert store.heartbeats(KEY, 1, num_nodes=2) == ()
    first, second, other = (Heartbeat(phase="tokenising", time_s=time_s, done=7) for time_s in (1.0, 2.0, 3.0))
    workers.heartbeat(1, 0, first)
    workers.heartbeat(1, 0, second)
    workers.heartbeat(1, 1, other)
    assert store.heartbeats(KEY, 1, num_nodes=2) == (second, other)
    assert store.heartbeats(KEY, 2, num_nodes=2) == ()
    assert store.telemetry(KEY, 1, START).records == (), "no telemetry of steps"
    store.clear_reports(KEY, 1)
    assert store.heartbeats(KEY, 1, num_nodes=2) == ()


def test_signs_of_progress_that_are_none_count_as_absent(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    workers.put(workers.paths.heartbeat(1, 0), "{")
    workers.heartbeat(1, 1, Heartbeat(phase="\x1b[2J" + "x" * 1000, time_s=1.0))
    (found,) = store.heartbeats(KEY, 1, num_nodes=2)
    assert found.phase == ("[2J" + "x" * 1000)[:300]


def test_checkpoints_ascend_and_can_be_forgotten(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    assert store.newest_checkpoint(KEY) is None
    for step in (20, 5, 100):
        workers.checkpoint(step)
    assert store.checkpoint_steps(KEY) == (5, 20, 100)
    assert store.newest_checkpoint(KEY) == 100
    store.clear_checkpoints(KEY)
    assert store.checkpoint_steps(KEY) == ()
    assert store.newest_checkpoint(KEY) is None


def test_what_trackers_have_is_known_until_the_run_starts_over(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    assert store.tracked(KEY) == ()
    known = TrackedRun(kind="mlflow", tracker_run="7", place="https://there/7", last_step=3)
    workers.tracked(known)
    assert store.tracked(KEY) == (known,)
    store.clear_checkpoints(KEY)
    assert store.tracked(KEY) == ()


def test_what_workers_say_of_trackers_is_bounded(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    workers.put(workers.paths.tracked("wandb"), "[]")
    workers.tracked(TrackedRun(kind="mlflow", tracker_run="7", place="\x1b[2Jhere", problem="x" * 1000))
    assert store.tracked(KEY) == (TrackedRun(kind="mlflow", tracker_run="7", place="[2Jhere", problem="x" * 300),)


def test_the_rate_of_the_newest_checkpoint_is_known_where_it_was_measured(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    assert store.checkpoint_rate(KEY) is None
    workers.checkpoint(5)
    assert store.checkpoint_rate(KEY) is None
    workers.checkpoint(7, 2.5e6)
    assert store.checkpoint_rate(KEY) == 2.5e6
    store.clear_checkpoints(KEY)
    assert store.checkpoint_rate(KEY) is None


def test_telemetry_of_known_nodes_needs_none_to_have_begun(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    page = store.telemetry(KEY, 1, TelemetryCursor.start(2))
    assert (page.records, page.cursor) == ((), TelemetryCursor.start(2))
    workers.latest(1, 1, 0, [record(1, 1)])
    page = store.telemetry(KEY, 1, page.cursor)
    assert page.records == (record(1, 1),)
    workers.latest(1, 0, 0, [record(1)])
    assert store.telemetry(KEY, 1, page.cursor).records == (record(1),)


def test_a_log_tail_is_the_end_of_one_rank(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.log(1, 0, "first line\nlast line\n")
    workers.log(1, 1, "other rank\n")
    assert store.log_part(KEY, 1).text == "first line\nlast line\n"
    assert store.log_part(KEY, 1, max_bytes=15).text == "last line\n", "from the start of a line"
    assert store.log_part(KEY, 1, rank=1).text == "other rank\n"


def test_the_output_of_a_pod_stands_in_for_a_first_rank_that_left_none(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    store.put_log(KEY, 1, FIRST_POD_LOG, "no such module\n")
    assert store.log_part(KEY, 1).text == "no such module\n"
    assert store.log_part(KEY, 1, rank=1).text == ""
    workers.log(1, 0, "training\n")
    assert store.log_part(KEY, 1).text == "training\n"


def test_a_log_is_read_part_by_part_in_whole_lines(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.log(1, 0, "one\ntwo\nthr")
    first = store.log_part(KEY, 1, offset=0, whole_lines=True, max_bytes=6)
    assert (first.text, first.has_more) == ("one\n", True)
    second = store.log_part(KEY, 1, offset=first.next_offset, whole_lines=True)
    assert (second.text, second.has_more) == ("two\n", True), "the line that is being written waits"
    nothing = store.log_part(KEY, 1, offset=second.next_offset, whole_lines=True)
    assert (nothing.text, nothing.next_offset) == ("", second.next_offset)
    workers.log(1, 1, "ended\n")
    last = store.log_part(KEY, 1, rank=1, offset=0, whole_lines=True)
    assert (last.text, last.has_more) == ("ended\n", False)


def test_the_last_line_of_what_has_ended_need_not_be_ended(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.log(1, 0, "one\nkill")
    assert store.log_part(KEY, 1, offset=4).text == "kill"
    assert store.log_part(KEY, 1, offset=4, max_bytes=2).text == "ki", "a line longer than a part comes in pieces"


@pytest.mark.parametrize("offset", range(24))
def test_no_offset_and_no_end_of_a_part_shows_a_piece_of_what_is_hidden(
    both: tuple[RunStore, Workers], offset: int
) -> None:
    store, workers = both
    workers.log(1, 0, "key hunter2-secret end\n")
    for most in (3, 9, 100):
        part = store.log_part(KEY, 1, offset=offset, max_bytes=most, hidden=(b"hunter2-secret",))
        assert part.text == "key ************** end\n"[offset:][:most]


def test_what_a_launcher_notes_comes_back_by_its_name(both: tuple[RunStore, Workers]) -> None:
    store, _ = both
    assert store.note(KEY, 1, "pods") is None
    store.put_note(KEY, 1, "pods", "one")
    store.put_note(KEY, 1, "pods", "two")
    store.put_note(KEY, 1, "stop", "three")
    assert (store.note(KEY, 1, "pods"), store.note(KEY, 1, "stop")) == ("two", "three")
    assert store.note(KEY, 2, "pods") is None


def test_workers_find_spec_config_and_control_by_the_paths(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    spec = values.launch_spec(store.run_dir(KEY), run_key=KEY)
    control = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=Reason(code=ReasonCode.PREEMPTED))
    store.put_spec(spec)
    store.put_control(KEY, 1, control)
    assert codec.loads(type(spec), workers.read(workers.paths.spec(1))) == spec
    assert json.loads(workers.read(workers.paths.ds_config(1))) == deepspeed_config(spec.job, spec.plan, spec.gpu.kind)
    assert codec.loads(Control, workers.read(workers.paths.control(1))) == control


def test_a_record_cut_in_its_line_waits_for_its_rest(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    place, whole = workers.paths.latest(1, 0), latest_text(0, [record(1), record(2)])
    workers.put(place, whole[:-10])
    page = store.telemetry(KEY, 1, START)
    assert page.records == (record(1),)
    workers.put(place, whole)
    assert store.telemetry(KEY, 1, page.cursor).records == (record(2),)


def test_a_loss_that_is_no_number_is_telemetry_too(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    workers.latest(1, 0, 0, [values.step_record(1, loss=float("nan"))])
    (found,) = store.telemetry(KEY, 1, START).records
    assert found.loss is None


def test_a_checkpoint_without_manifest_or_with_a_short_file_does_not_exist(
    files: tuple[FsspecRunStore, FileWorkers],
) -> None:
    store, workers = files
    for step in (1, 2, 3, 4):
        workers.checkpoint(step)
    folder = {step: workers.paths.checkpoint_manifest(step).rpartition("/")[0] for step in (1, 2, 3, 4)}
    workers.remove(f"{folder[1]}/manifest.json")
    workers.put(f"{folder[2]}/optim.bin", "cut")
    workers.put(f"{folder[3]}/manifest.json", "{")
    assert store.checkpoint_steps(KEY) == (4,)
    workers.remove(f"{folder[4]}/optim.bin")
    assert store.newest_checkpoint(KEY) is None
    workers.put(f"{folder[2]}/optim.bin", "x" * 100)
    assert store.newest_checkpoint(KEY) == 2


def test_a_result_that_cannot_be_read_counts_as_none(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    workers.put(workers.paths.result(1), '{"exit_code": 0')
    assert store.result(KEY, 1) is None


def test_the_supervisors_result_stands_for_the_workers(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, _ = files
    store.put_result(KEY, 1, RESULT)
    assert store.result(KEY, 1) == RESULT


def test_no_temporary_file_stays_behind(tmp_path: Path) -> None:
    store = FsspecRunStore(str(tmp_path))
    store.put_spec(values.launch_spec(store.run_dir(KEY), run_key=KEY))
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert names == ["ds_config.json", "spec.json"]


def test_the_trainers_checkpoints_are_seen(tmp_path: Path) -> None:
    """The trainer writes manifests and this side reads them; neither imports the other."""
    from frenzy.core.lifecycle.checkpoint_manifest import CheckpointManifest, FileEntry
    from frenzy.core.lifecycle.resume import ParallelLayout
    from frenzy.trainer.checkpoint.store import CheckpointStore

    store = FsspecRunStore(str(tmp_path))
    source = tmp_path / "weights.bin"
    source.write_bytes(b"12345")
    written = CheckpointStore(RunPaths(store.run_dir(KEY)))
    written.upload(7, source)
    assert store.checkpoint_steps(KEY) == ()
    entry = FileEntry(path="weights.bin", num_bytes=5)
    layout = ParallelLayout(world_size=1, zero_stage=1)
    written.commit(CheckpointManifest(step=7, layout=layout, files=(entry,), save_id="a"))
    assert store.checkpoint_steps(KEY) == (7,)
    store.clear_checkpoints(KEY)
    assert written.manifests() == ()


def filled(store: RunStore, workers: Workers) -> None:
    store.put_spec(values.launch_spec(store.run_dir(KEY), run_key=KEY))
    store.put_note(KEY, 1, "pods", "one")
    workers.latest(1, 0, 0, [record(1)])
    workers.checkpoint(5)
    workers.log(1, 0, "training\n")
    workers.result(1, RESULT)


def test_cleaning_leaves_nothing_of_the_run_and_says_how_much_there_was(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    filled(store, workers)
    there = store.clean(KEY, keep_model=True, dry_run=True)
    assert there > 0
    assert (store.result(KEY, 1), store.checkpoint_steps(KEY)) == (RESULT, (5,)), "a dry run removes nothing"
    assert store.clean(KEY, keep_model=True, dry_run=False) == there
    assert (store.spec(KEY, 1), store.result(KEY, 1), store.note(KEY, 1, "pods")) == (None, None, None)
    assert (store.checkpoint_steps(KEY), store.log_part(KEY, 1).text) == ((), "")
    assert store.telemetry(KEY, 1, START).records == ()
    assert store.clean(KEY, keep_model=False, dry_run=False) == 0


def test_cleaning_leaves_other_runs_alone(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    filled(store, workers)
    assert store.clean(KEY[:-1], keep_model=False, dry_run=False) == 0
    assert store.clean(f"{KEY}0", keep_model=False, dry_run=False) == 0
    assert store.result(KEY, 1) == RESULT


def test_the_finished_model_stays_unless_it_is_to_go(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    filled(store, workers)
    model = f"{workers.paths.model_dir}/model.safetensors"
    workers.put(model, "x" * 1000)
    whole = store.clean(KEY, keep_model=False, dry_run=True)
    assert store.clean(KEY, keep_model=True, dry_run=False) == whole - 1000
    assert (store.model_files(KEY), store.model_files("another")) == ({"model.safetensors": 1000}, {})
    assert workers.exists(model)
    assert not workers.exists(workers.paths.result(1))
    assert store.clean(KEY, keep_model=False, dry_run=False) == 1000
    assert not workers.exists(model)


def test_no_empty_folder_is_left_of_a_cleaned_run(tmp_path: Path) -> None:
    store, workers = FILE_STORES["local path"](tmp_path)
    filled(store, workers)
    store.clean(KEY, keep_model=True, dry_run=False)
    assert list((tmp_path / "runs").iterdir()) == []


MODEL = {"config.json": b"{}", "model.safetensors": b"0123456789" * 1000, "tokenizer/vocab.json": b'{"a": 0}'}


def test_the_finished_model_is_handed_on_file_by_file(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    assert (store.model_files(KEY), store.model_file(KEY, "config.json")) == ({}, None)
    workers.model(MODEL)
    assert store.model_files(KEY) == {name: len(content) for name, content in MODEL.items()}
    for name, content in MODEL.items():
        found = store.model_file(KEY, name)
        assert found is not None
        assert (found.num_bytes, b"".join(found.parts(0, found.num_bytes))) == (len(content), content)
        assert b"".join(found.parts(1, 7)) == content[1:7]


@pytest.mark.parametrize(
    "name", ["", ".", "../attempt-1/spec.json", "/etc/passwd", "tokenizer", "tokenizer/../config.json"]
)
def test_only_what_the_listing_names_is_handed_on(name: str, both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.model(MODEL)
    store.put_spec(values.launch_spec(store.run_dir(KEY), run_key=KEY))
    assert store.model_file(KEY, name) is None


def test_a_file_that_is_replaced_is_another_version_and_never_half_of_one(both: tuple[RunStore, Workers]) -> None:
    store, workers = both
    workers.model(MODEL)
    before = store.model_file(KEY, "config.json")
    workers.model({"config.json": b"[1, 2]"})
    after = store.model_file(KEY, "config.json")
    assert before is not None and after is not None
    assert before.version != after.version
    assert b"".join(after.parts(0, 6)) == b"[1, 2]"


def test_a_transfer_breaks_where_its_file_was_replaced(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    workers.model(MODEL)
    found = store.model_file(KEY, "config.json")
    workers.model({"config.json": b"[1, 2]"})
    assert found is not None
    with pytest.raises(OSError, match="was replaced"):
        b"".join(found.parts(0, 2))


def test_a_large_file_is_read_a_few_mebibytes_at_a_time(files: tuple[FsspecRunStore, FileWorkers]) -> None:
    store, workers = files
    content = b"0123456789abcdef" * 2**16 * 9
    workers.model({"model.safetensors": content})
    found = store.model_file(KEY, "model.safetensors")
    assert found is not None
    parts = list(found.parts(5, len(content)))
    assert max(map(len, parts)) <= 4 * 2**20
    assert b"".join(parts) == content[5:]
