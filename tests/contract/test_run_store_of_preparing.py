"""What the process that prepares a run's data is told, and what it answers, in every run directory."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from tests.contract import values

from frenzy.adapters.files.run_store import FsspecRunStore
from frenzy.core.values import codec
from frenzy.core.values.prepared_data import PreparingResult, PreparingSpec
from frenzy.core.values.telemetry import Heartbeat

SIGN = Heartbeat(phase="tokens made", time_s=1.0, done=7)
ROOTS: dict[str, Callable[[Path], str]] = {
    "local path": lambda folder: f"{folder}/runs",
    "file url": lambda folder: f"file://{folder}/runs/",
    "object store": lambda _: f"memory://{uuid.uuid4().hex}/runs",
}


@pytest.fixture(params=sorted(ROOTS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FsspecRunStore:
    return FsspecRunStore(ROOTS[request.param](tmp_path))


def spec_of(store: FsspecRunStore) -> PreparingSpec:
    return PreparingSpec(run_key="r1", number=1, job=values.job(), run_dir=store.run_dir("r1"))


def put(place: str, text: str) -> None:
    fs, path = fsspec.core.url_to_fs(place)
    fs.pipe_file(path, text.encode())


def test_the_process_finds_its_request_and_a_folder_for_its_team(store: FsspecRunStore) -> None:
    spec = spec_of(store)
    store.put_preparing(spec)
    with fsspec.open(spec.request) as file:
        assert codec.loads(PreparingSpec, file.read()) == spec
    with fsspec.open(f"{spec.data.folder}/team.txt", "r") as file:
        assert file.read() == f"{spec.job.team}\n"


def test_its_progress_and_its_end_are_read(store: FsspecRunStore) -> None:
    spec = spec_of(store)
    store.put_preparing(spec)
    assert (store.preparing_sign(spec), store.preparing_result(spec)) == (None, None)
    put(spec.signs, codec.dumps(SIGN))
    put(spec.result, codec.dumps(PreparingResult(exit_code=99, detail="refused")))
    assert store.preparing_sign(spec) == SIGN
    assert store.preparing_result(spec) == PreparingResult(exit_code=99, detail="refused")
    assert store.preparing_result(replace(spec, number=2)) is None


def test_what_helpers_made_counts_as_far_as_they_do_the_same(store: FsspecRunStore) -> None:
    spec = spec_of(store)
    store.put_preparing(spec)
    put(spec.signs_of_helper(1), codec.dumps(replace(SIGN, done=10)))
    put(spec.signs_of_helper(2), codec.dumps(Heartbeat(phase="reading", time_s=1.0, done=100)))
    put(spec.signs_of_helper(3), "{")
    assert store.preparing_sign(spec) is None
    put(spec.signs, codec.dumps(SIGN))
    assert store.preparing_sign(spec) == replace(SIGN, done=17)


def test_what_was_there_before_the_process_began_is_none_of_its(store: FsspecRunStore) -> None:
    """Workers of an earlier pass may write the run's folder."""
    spec = spec_of(store)
    store.put_preparing(spec)
    put(spec.result, codec.dumps(PreparingResult(exit_code=0)))
    store.put_preparing(spec)
    assert store.preparing_result(spec) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"exit_code": "none"}'])
def test_what_cannot_be_read_counts_as_not_there(store: FsspecRunStore, text: str) -> None:
    spec = spec_of(store)
    store.put_preparing(spec)
    put(spec.signs, text)
    put(spec.result, text)
    assert (store.preparing_sign(spec), store.preparing_result(spec)) == (None, None)
