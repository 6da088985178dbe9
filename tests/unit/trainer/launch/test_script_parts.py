"""What a script says and leaves, which may be anything: its launcher goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from tests.trainer.launching import Case

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.core.lifecycle.checkpoint_manifest import FileEntry
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.core.values.telemetry import SAVING
from frenzy.ports import TelemetryCursor
from frenzy.trainer.checkpoint.store import CheckpointStore
from frenzy.trainer.launch.local_ranks import LocalRanks
from frenzy.trainer.launch.script import relay
from frenzy.trainer.launch.script.checkpoints import ScriptCheckpoint, newest, record
from frenzy.trainer.launch.script.environment import ScriptRank, deepspeed_text, job_text
from frenzy.trainer.launch.script.rank_work import RankWork
from frenzy.trainer.launch.script.relay import NodeWatch, RankWatch
from frenzy.trainer.launch.script.reports import ReportFile
from frenzy.trainer.telemetry.shared_progress import SharedProgress
from frenzy.trainer.telemetry.writer import NodeTelemetry


@pytest.fixture
def spec(tmp_path: Path) -> LaunchSpec:
    job: dict[str, Any] = {"workload": {"command": ["python"], "resumable": True}, "memory": {"per_gpu": "1 GiB"}}
    return Case(run_dir=str(tmp_path / "run"), data="", job=job).spec()


@pytest.fixture
def board() -> SharedProgress:
    return SharedProgress(1)


@pytest.fixture
def telemetry(spec: LaunchSpec) -> NodeTelemetry:
    return NodeTelemetry(RunPaths(spec.run_dir), 1, 0)


@pytest.fixture
def watch(spec: LaunchSpec, board: SharedProgress, telemetry: NodeTelemetry, tmp_path: Path) -> Iterator[RankWatch]:
    ranks = LocalRanks(first=0, count=1, node_rank=0, is_only_machine=True)
    rank = ScriptRank(spec=spec, ranks=ranks, local_rank=0, address="127.0.0.1", port=1, scratch=tmp_path, resume=None)
    found = RankWatch(rank, os.getpid(), board, 0, telemetry)
    yield found
    found.close()


def says(folder: Path, **content: Any) -> None:
    with (folder / "rank-0.reports").open("a") as file:
        file.write(json.dumps(content) + "\n")


def test_the_releases_of_the_script_go_with_its_first_step_alone(
    watch: RankWatch, telemetry: NodeTelemetry, spec: LaunchSpec, tmp_path: Path
) -> None:
    says(
        tmp_path,
        kind="hello",
        releases={"transformers": "4.44.2", "torch": "no release", "pip": "24.0", "deepspeed": 1},
    )
    for step in (1, 2):
        says(tmp_path, kind="step", step=step)
    watch.read()
    telemetry.close()
    first, second = FsspecRunStore(str(Path(spec.run_dir).parent)).telemetry("run", 1, TelemetryCursor()).records
    assert first.releases == watch.releases == {"transformers": "4.44.2"}
    assert second.releases == {}


@pytest.mark.parametrize("said", [None, [], "4.44.2", {"torch": None}])
def test_releases_that_are_none_are_passed_over(watch: RankWatch, tmp_path: Path, said: object) -> None:
    says(tmp_path, kind="hello", releases=said)
    watch.read()
    assert watch.releases == {}


@pytest.mark.parametrize("path", ["", None, 7, ["a"], "no-such-scheme://bucket/one", "a\0b", "/no/such/folder"])
def test_a_checkpoint_that_is_nowhere_is_passed_over(
    watch: RankWatch, board: SharedProgress, tmp_path: Path, path: object, caplog: pytest.LogCaptureFixture
) -> None:
    says(tmp_path, kind="checkpoint", step=1, path=path)
    watch.read()
    assert "checkpoint" in caplog.text
    assert board.checkpoint_step(0) is None
    says(tmp_path, kind="checkpoint", step=2, path=str(tmp_path))
    watch.read()
    assert board.checkpoint_step(0) == 2


@pytest.mark.parametrize("why", [None, 7, "", " \n"])
def test_a_refusal_without_a_reason_is_none(watch: RankWatch, tmp_path: Path, why: object) -> None:
    says(tmp_path, kind="refused", why=why)
    watch.read()
    assert not watch.refusal


def test_a_refusal_is_one_line_of_bounded_length(watch: RankWatch, tmp_path: Path) -> None:
    says(tmp_path, kind="refused", why="row 7:\n no answer " + "x" * 2000)
    watch.read()
    assert watch.refusal is not None
    assert watch.refusal.startswith("row 7: no answer xxx")
    assert len(watch.refusal) == 500


def test_the_script_is_told_the_job_without_its_variables(spec: LaunchSpec) -> None:
    job = replace(spec.job, env={"TOKEN": "hidden"}, secrets={"KEY": "env:HIDDEN"})
    told = json.loads(job_text(replace(spec, job=job)))
    assert sorted(told) == ["data", "model", "training"]
    assert (told["model"]["config"], told["training"]["lora"]) == (spec.job.model.config, None)
    assert told["model"]["tokenizer"] == "byte", "defaults that depend on others are filled in"
    assert "hidden" not in job_text(replace(spec, job=job)).lower()


@pytest.mark.parametrize("content", ["[]", "{}", "no JSON", json.dumps({"path": "no-such-scheme://a/b"})])
def test_the_newest_checkpoint_is_the_newest_whose_record_can_be_read(
    spec: LaunchSpec, tmp_path: Path, content: str
) -> None:
    for step in (1, 2):
        assert record(spec, ScriptCheckpoint(step=step, path=str(tmp_path)), tmp_path)
    store, file = CheckpointStore(RunPaths(spec.run_dir)), tmp_path / "script.json"
    file.write_text(content)
    manifest = store.manifests()[0]
    store.upload(2, file)
    entry = FileEntry(file.name, len(content), xxhash.xxh3_128_hexdigest(content.encode()))
    store.commit(replace(manifest, files=(entry,)))
    assert newest(spec) == ScriptCheckpoint(step=1, path=str(tmp_path))


@pytest.fixture
def signs(
    watch: RankWatch, telemetry: NodeTelemetry, spec: LaunchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float, float, int], list[str]]:
    """The signs of a turn: at a time since the last step, with the work that was done since the turn before."""
    ranks = LocalRanks(first=0, count=1, node_rank=0, is_only_machine=True)
    rank = ScriptRank(spec=spec, ranks=ranks, local_rank=0, address="127.0.0.1", port=1, scratch=tmp_path, resume=None)
    node = NodeWatch({0: watch}, rank, lambda: False, telemetry)

    def turn(now_s: float, worked_s: float, num_bytes: int) -> list[str]:
        told: list[str] = []
        monkeypatch.setattr(RankWork, "grown", lambda _: (worked_s, num_bytes))
        monkeypatch.setattr(relay.heartbeats, "beat", lambda phase, _: told.append(phase))
        monkeypatch.setattr(relay.time, "monotonic", lambda: 1e6 + now_s)
        node.turn()
        return told

    return turn


COMPUTES = "running the script: seconds of processor time"


def test_a_script_that_evaluates_or_saves_after_a_step_shows_progress_while_it_works(
    signs: Callable[[float, float, int], list[str]], tmp_path: Path
) -> None:
    assert signs(0, 0.01, 0) == [COMPUTES], "before the first step"
    says(tmp_path, kind="step", step=1)
    assert signs(10, 5.0, 2**30) == [], "steps come"
    assert signs(600, 5.0, 0) == [COMPUTES]
    assert signs(605, 0.05, 2**20) == [], "it only logs"
    assert signs(1200, 0.05, 2**30) == [COMPUTES], "it writes"


def test_processor_time_alone_is_no_progress_for_ever(
    signs: Callable[[float, float, int], list[str]], tmp_path: Path
) -> None:
    says(tmp_path, kind="step", step=1)
    signs(0, 5.0, 0)
    assert signs(3500, 5.0, 0) == [COMPUTES]
    assert signs(3610, 5.0, 0) == []
    assert signs(3700, 5.0, 2**30) == [COMPUTES]
    assert signs(7200, 5.0, 0) == [COMPUTES], "an hour since it wrote"


def test_a_script_that_obeys_the_request_to_stop_says_that_it_saves(
    signs: Callable[[float, float, int], list[str]], tmp_path: Path
) -> None:
    says(tmp_path, kind="step", step=1)
    signs(0, 5.0, 0)
    says(tmp_path, kind="stopping", step=1)
    assert signs(30, 0.0, 2**30) == [f"{SAVING}: seconds of processor time"]
    assert signs(35, 0.0, 0) == [], "it hangs"


def test_what_a_child_of_the_command_does_counts() -> None:
    work = "open('/dev/null', 'wb').write(bytes(2**23)); sum(range(10**7)); print(1, flush=True); input()"
    command = ["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, work]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        watched, other = RankWork([child.pid]), RankWork([])
        child.stdout.readline()
        worked_s, num_bytes = watched.grown()
        assert worked_s > 0.05
        assert num_bytes > 2**23
        assert watched.grown() == (0.0, 0)
        assert other.grown() == (0.0, 0)
        child.stdin.close()


def test_what_is_no_plain_file_holds_no_reports(tmp_path: Path) -> None:
    place = tmp_path / "reports"
    os.mkfifo(place)
    assert list(ReportFile(place).new()) == []
    place.unlink()
    place.mkdir()
    assert list(ReportFile(place).new()) == []
    place.rmdir()
    (tmp_path / "elsewhere").write_text('{"kind": "hello"}\n')
    place.symlink_to(tmp_path / "elsewhere")
    assert list(ReportFile(place).new()) == []


@pytest.mark.parametrize(("optimizer", "named"), [("adamw", "AdamW"), ("sgd", "SGD"), ("adamw-8bit", None)])
def test_the_config_names_no_optimizer_that_deepspeed_does_not_know(
    spec: LaunchSpec, optimizer: str, named: str | None
) -> None:
    job = replace(spec.job, training=replace(spec.job.training, optimizer=optimizer))
    config = json.loads(deepspeed_text(replace(spec, job=job)))
    assert config.get("optimizer", {}).get("type") == named
    assert config["zero_optimization"]["stage"] == spec.plan.zero_stage


def test_a_crash_counts_unless_the_script_had_reached_its_end(watch: RankWatch, tmp_path: Path) -> None:
    assert [watch.judged(code) for code in (0, 1, 134)] == [0, 1, 134]
    says(tmp_path, kind="ended")
    assert [watch.judged(code) for code in (0, 1, 134, 137, 139)] == [0, 1, 0, 137, 0]
