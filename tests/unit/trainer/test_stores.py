"""Stores that go away: what their clients raise is told from faults of the work, and ends nothing that went well."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import pytest
from tests.trainer.put_only_store import PutOnlyStore
from tests.trainer.whole_checkpoints import list_checkpoints, newest_good
from tests.unit.trainer.checkpoint.test_store import LAYOUT, save

from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode, TemporaryError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import CheckpointSpec, TrainingSpec, ValidationSpec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.trainer import files
from frenzy.trainer.best_so_far import BestSoFar
from frenzy.trainer.checkpoint.store import prepare_resume
from frenzy.trainer.collective import failure_of
from frenzy.trainer.launch import __main__ as launch
from frenzy.trainer.launch import rank_failures
from frenzy.trainer.launch.local_ranks import upload_logs
from frenzy.trainer.loop import train
from frenzy.trainer.loop.control import ControlFile


class EndpointConnectionError(Exception):
    """As botocore's: no OSError."""


EndpointConnectionError.__module__ = "botocore.exceptions"


class AwayStore(PutOnlyStore):
    """Addressed as ``away:///folder``; its next ``num_failures`` calls fail as S3's client does without a network."""

    protocol = "away"
    num_failures: ClassVar[int] = 0

    def _answer(self) -> None:
        if AwayStore.num_failures > 0:
            AwayStore.num_failures -= 1
            raise EndpointConnectionError("Could not connect to the endpoint URL")

    def open(self, *arguments: Any, **options: Any) -> Any:
        self._answer()
        return super().open(*arguments, **options)

    def cat_file(self, *arguments: Any, **options: Any) -> bytes:
        self._answer()
        return bytes(super().cat_file(*arguments, **options))

    def pipe_file(self, *arguments: Any, **options: Any) -> None:
        self._answer()
        super().pipe_file(*arguments, **options)

    def put_file(self, *arguments: Any, **options: Any) -> None:
        self._answer()
        super().put_file(*arguments, **options)


fsspec.register_implementation(AwayStore.protocol, AwayStore, clobber=True)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WAITS_S", (0.0,) * 6)
    monkeypatch.setattr(train, "_TRIES_AFTER_S", (None, 0.0, 0.0))
    monkeypatch.setattr(AwayStore, "num_failures", 0)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(f"away://{tmp_path}/run")


def test_a_client_that_reaches_no_store_is_a_failure_of_storage() -> None:
    failures = [failure_of(each) for each in (EndpointConnectionError("gone"), OSError(28, "full"), ValueError("bad"))]
    assert [each is not None and each.of_storage for each in failures] == [True, True, False]


def test_a_store_that_is_away_asks_no_training_to_stop(tmp_path: Path) -> None:
    AwayStore.num_failures = 1
    assert not ControlFile(f"away://{tmp_path}/control.json").asks_to_stop()
    assert AwayStore.num_failures == 0


def test_a_read_is_tried_until_the_store_is_back(tmp_path: Path) -> None:
    place = f"away://{tmp_path}/text"
    files.write_text(place, "here")
    AwayStore.num_failures = 5
    assert files.patiently(lambda: files.read_text(place)) == "here"
    AwayStore.num_failures = 100
    with pytest.raises(OSError, match="EndpointConnectionError: Could not connect"):
        files.patiently(lambda: files.read_text(place))


def test_a_checkpoint_is_not_passed_over_while_its_store_is_away(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training would go on from further back, or from nothing."""
    save(paths, 1)
    newest = save(paths, 2)
    AwayStore.num_failures = 100
    for read in (list_checkpoints, newest_good, lambda paths: prepare_resume(paths, tmp_path, LAYOUT)):
        with pytest.raises(OSError, match="EndpointConnectionError"):
            read(paths)
    AwayStore.num_failures = 3
    assert list_checkpoints(paths)[0] == newest
    monkeypatch.setattr(AwayStore, "cat_file", PutOnlyStore.cat_file)
    AwayStore.num_failures = 1
    assert newest_good(paths) == newest, "a file whose digest is of all of it is read again, too"


def test_logs_that_their_store_does_not_take_change_nothing_of_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank-0.log").write_text("step 1")
    AwayStore.num_failures = 1
    spec: Any = SimpleNamespace(run_dir=f"away://{tmp_path}/run", attempt=1)
    upload_logs(spec, logs)
    assert "rank-0.log stays on its node" in caplog.text


def test_the_result_is_told_to_the_node_and_put_once_the_store_is_back(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRENZY_TERMINATION_LOG", str(tmp_path / "termination-log"))
    AwayStore.num_failures = 3
    result = AttemptResult(exit_code=ExitCode.DONE, last_step=4, total_steps=4)
    launch._settle(paths, 1, result)
    assert codec.loads(AttemptResult, files.read_text(paths.result(1))) == result
    assert (tmp_path / "termination-log").exists()


def test_a_nodes_failure_is_its_own_where_its_store_takes_no_word_of_it(tmp_path: Path) -> None:
    AwayStore.num_failures = 1
    own = AttemptResult(exit_code=ExitCode.CUDA_OUT_OF_MEMORY, last_step=1, total_steps=4)
    spec: Any = SimpleNamespace(run_dir=f"away://{tmp_path}/run", attempt=1, gpus_per_node=(1, 1))
    assert rank_failures.share_failures(spec, node_rank=1, own=own) is own


class FailingSaver:
    """A saver whose next ``num_failures`` checkpoints cannot be written."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures, self.begun = num_failures, 0
        self.pending_step: int | None = None
        self.kept_steps: tuple[int, ...] = ()

    def begin(self, state: Any, *, trains_on: bool) -> None:
        self.begun, self.pending_step = self.begun + 1, state.step

    def finish(self) -> None:
        self.pending_step = None
        if self.begun <= self.num_failures:
            reason = Reason(code=ReasonCode.WORKER_CRASHED, detail="Rank 17 could not save: OSError: 503")
            raise TemporaryError(reason, retry_after_s=30)


def _save(saver: FailingSaver, *, trains_on: bool) -> str | None:
    job = SimpleNamespace(
        validation=ValidationSpec(), checkpoint=CheckpointSpec(background=False), training=TrainingSpec(max_steps=9)
    )
    run: Any = SimpleNamespace(
        spec=SimpleNamespace(job=job, plan=SimpleNamespace(num_gpus=2, zero_stage=2)),
        prepared=SimpleNamespace(total_steps=9),
        rank=0,
        engine=None,
        callbacks=(),
        board=SimpleNamespace(set_checkpoint=lambda *_: None),
        local_rank=0,
        device=SimpleNamespace(host_work=nullcontext),
        tokens_per_step=8,
    )
    end: Any = SimpleNamespace(step=7, loss=1.0, best=BestSoFar())
    return train._save(run, end, saver, trains_on=trains_on)  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_failures", "begun", "is_saved"), [(0, 1, True), (2, 3, True), (9, 3, False)])
def test_the_last_checkpoint_of_an_attempt_is_tried_again_and_its_end_tells_the_truth(
    num_failures: int, begun: int, is_saved: bool
) -> None:
    saver = FailingSaver(num_failures)
    failure = _save(saver, trains_on=False)
    assert (saver.begun, failure is None) == (begun, is_saved)
    told = train._stopped(7, failure)
    if is_saved:
        assert told == "stopped on request after a checkpoint"
    else:
        assert "at step 7, whose checkpoint could not be written" in told and "Rank 17 could not save" in told


def test_a_checkpoint_that_others_follow_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = FailingSaver(9)
    assert _save(saver, trains_on=True) is not None
    assert saver.begun == 1


def test_a_launcher_that_fails_itself_leaves_its_reason(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a node waited in vain for another."""

    def fail(*_: object) -> AttemptResult:
        raise TemporaryError(Reason(code=ReasonCode.LAUNCH_FAILED, detail="Another node did not get ready"))

    hardware = SimpleNamespace(kind=DeviceKind.CUDA)
    spec = SimpleNamespace(gpus_per_node=(1, 1), gpu=hardware, job=SimpleNamespace(env={}))
    monkeypatch.setattr(launch.codec, "loads", lambda *_: spec)
    monkeypatch.setattr(launch.env, "enter", lambda *_, **__: None)
    monkeypatch.setattr(launch, "_run", fail)
    files.write_text(paths.spec(1), "{}")
    code = launch.main(["--run-dir", paths.run_dir, "--attempt", "1", "--node-rank", "0"])
    monkeypatch.undo()
    result = codec.loads(AttemptResult, files.read_text(paths.result(1)))
    assert (result.exit_code, result.last_step) == (code, 0)
    assert "Another node did not get ready" in (result.detail or "")
