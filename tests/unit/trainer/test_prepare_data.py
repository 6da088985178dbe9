"""Data are prepared before a run has GPUs, and found again by whoever has the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frenzy.core.values import codec
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.job import DataSpec, MessagesSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.prepared_data import PreparingResult, PreparingSpec
from frenzy.core.values.run_files import ExitCode
from frenzy.core.values.telemetry import Heartbeat
from frenzy.trainer.data.packing import SequenceReader
from frenzy.trainer.data.run_data import Announcement, Listing, frozen_data, frozen_tokenizer
from frenzy.trainer.data.source_parts import survey
from frenzy.trainer.prepare_data import run

TEXT = "To be, or not to be, that is the question. " * 400


@pytest.fixture
def spec(tmp_path: Path) -> PreparingSpec:
    (tmp_path / "text.txt").write_text(TEXT)
    job = TrainingJob(
        name="job",
        model=ModelSpec(config={"model_type": "gpt2"}, tokenizer="byte"),
        data=DataSpec(path=str(tmp_path / "text.txt"), sequence_length=64, validation_fraction=0.1),
        training=TrainingSpec(epochs=2.0, global_batch_size=8),
        team="blue",
    )
    return PreparingSpec(run_key="r1", number=1, job=job, run_dir=str(tmp_path / "runs/r1"))


def test_the_workers_read_what_was_prepared(spec: PreparingSpec, tmp_path: Path) -> None:
    found = run(spec).prepared
    assert found is not None
    packed = frozen_data(found, spec.data, spec.job.data)
    assert packed.num_train == found.num_train
    assert found.total_steps == -(-2 * found.num_train // 8)
    first = SequenceReader(packed).read(np.array([0]))[0]
    assert bytes(first.astype(np.uint8)).decode() == TEXT[:64]
    assert (frozen_tokenizer(found, spec.data, tmp_path) / "tokenizer_config.json").exists()


def test_another_run_of_the_team_finds_it_and_makes_nothing(spec: PreparingSpec, tmp_path: Path) -> None:
    first = run(spec)
    written = {each: each.stat().st_mtime_ns for each in (tmp_path / "runs/.data").rglob("*.bin")}
    again = run(replace(spec, run_key="r2", run_dir=str(tmp_path / "runs/r2")))
    assert again.prepared == first.prepared
    assert {each: each.stat().st_mtime_ns for each in (tmp_path / "runs/.data").rglob("*.bin")} == written


def test_a_tokenizer_that_is_learnt_is_learnt_once_for_the_same_text(spec: PreparingSpec, tmp_path: Path) -> None:
    model = ModelSpec(config={"model_type": "gpt2"}, tokenizer="train", tokenizer_vocab_size=300)
    spec = replace(spec, job=replace(spec.job, model=model))
    first = run(spec).prepared
    assert first is not None
    files = Path(spec.data.tokenizer(first.tokenizer)).iterdir
    written = {each: each.stat().st_mtime_ns for each in files()}
    assert run(replace(spec, run_dir=str(tmp_path / "runs/r2"))).prepared == first
    assert {each: each.stat().st_mtime_ns for each in files()} == written


@pytest.mark.parametrize("other", ["red", "blu/e", "../blue", "Blue"])
def test_another_team_reads_and_writes_elsewhere(spec: PreparingSpec, tmp_path: Path, other: str) -> None:
    theirs = replace(spec, job=replace(spec.job, team=other))
    assert Path(theirs.data.folder).parent == tmp_path / "runs/.data"
    assert theirs.data.folder != spec.data.folder


def test_prepared_data_that_are_gone_or_changed_are_named(spec: PreparingSpec) -> None:
    found = run(spec).prepared
    assert found is not None
    with pytest.raises(PermanentError) as caught:
        frozen_data(replace(found, digest="0" * 32), spec.data, spec.job.data)
    assert caught.value.reason.code is ReasonCode.DATA_NOT_PREPARED
    shutil.rmtree(spec.data.shards(found.shards))
    with pytest.raises(PermanentError, match="Clear the run's task profile"):
        frozen_data(found, spec.data, spec.job.data)


@pytest.mark.parametrize("linked", ["{shards}", "{shards}/shards.json"])
def test_a_link_in_the_place_of_prepared_data_is_not_followed(spec: PreparingSpec, linked: str) -> None:
    found = run(spec).prepared
    assert found is not None
    _replace_by_link(Path(linked.format(shards=spec.data.shards(found.shards))))
    with pytest.raises(PermanentError, match="not whole"):
        frozen_data(found, spec.data, spec.job.data)


def test_a_shard_that_is_replaced_by_a_link_is_refused(spec: PreparingSpec) -> None:
    found = run(spec).prepared
    assert found is not None
    packed = frozen_data(found, spec.data, spec.job.data)
    reader = SequenceReader(packed)
    _replace_by_link(Path(packed.place) / packed.shards[0].name)
    with pytest.raises(FileNotFoundError, match="A link is no plain file"):
        reader.read(np.array([0]))
    reader.close()


def test_the_folder_of_the_shards_is_opened_once(spec: PreparingSpec) -> None:
    found = run(spec).prepared
    assert found is not None
    reader = SequenceReader(frozen_data(found, spec.data, spec.job.data))
    _replace_by_link(Path(spec.data.shards(found.shards)), "/etc")
    assert len(reader.read(np.array([0]))) == 1
    reader.close()


def test_a_listing_of_ids_of_no_known_width_is_refused(spec: PreparingSpec) -> None:
    found = run(spec).prepared
    assert found is not None
    place = Path(spec.data.listing(found.shards))
    listing = codec.loads(Listing, place.read_text())
    place.write_text(codec.dumps(replace(listing, num_bytes_per_token=1)))
    for shard in listing.shards:
        os.truncate(place.with_name(shard.name), shard.num_tokens)
    with pytest.raises(PermanentError, match="not whole"):
        frozen_data(found, spec.data, spec.job.data)


def test_what_killed_processes_left_is_removed_and_may_be_gone_before(spec: PreparingSpec) -> None:
    """Another preparer puts into place what was just listed: a link to nothing is listed, too, and not there."""
    first = run(spec)
    assert first.prepared is not None
    folder = Path(spec.data.shards(first.prepared.shards))
    (folder / ".shard-gone.tmp").symlink_to("nowhere")
    left = folder / ".shard-old.tmp"
    left.touch()
    os.utime(left, (0, 0))
    assert run(spec) == first
    assert not left.exists()


def _replace_by_link(place: Path, target: str | None = None) -> None:
    away = place.rename(place.with_name(f"away-{place.name}"))
    place.symlink_to(target or away)


def announced(spec: PreparingSpec, tmp_path: Path, num_files: int) -> Announcement:
    """Work of as many segments, as the first preparer announces it, with nothing done yet."""
    (tmp_path / "many").mkdir()
    for number in range(num_files):
        (tmp_path / f"many/{number}.txt").write_text(TEXT)
    first = run(spec).prepared
    assert first is not None
    data = replace(spec.job.data, path=str(tmp_path / "many"))
    work = Announcement(source=survey(data, segment_bytes=len(TEXT)), tokenizer=first.tokenizer)
    Path(spec.announced).parent.mkdir(parents=True, exist_ok=True)
    Path(spec.announced).write_text(codec.dumps(work))
    return work


def made_by_helper(spec: PreparingSpec, tmp_path: Path, *, rank: int, num_files: int) -> list[str]:
    work = announced(spec, tmp_path, num_files)
    before = set((tmp_path / "runs/.data").rglob("*.bin"))
    data = replace(spec.job.data, path=str(tmp_path / "many"))
    helped = run(replace(spec, job=replace(spec.job, data=data)), rank=rank, count=3)
    assert (helped.exit_code, helped.prepared, len(work.source.segments)) == (ExitCode.DONE, None, num_files)
    return sorted(each.name for each in {*(tmp_path / "runs/.data").rglob("*.bin")} - before)


def test_a_helper_makes_what_the_first_announced_and_tells_what_it_made(spec: PreparingSpec, tmp_path: Path) -> None:
    made = made_by_helper(spec, tmp_path, rank=1, num_files=4)
    assert made == [f"{number:06}-000000.bin" for number in range(4)]
    sign = codec.loads(Heartbeat, Path(spec.signs_of_helper(1)).read_text())
    assert sign.done is not None


def test_a_helper_without_a_segment_of_its_own_is_not_needed(spec: PreparingSpec, tmp_path: Path) -> None:
    assert made_by_helper(spec, tmp_path, rank=2, num_files=2) == []


def test_a_helper_waits_for_the_first_and_leaves_the_end_to_it(spec: PreparingSpec, tmp_path: Path) -> None:
    alone = run(replace(spec, run_dir=str(tmp_path / "elsewhere/r1")))
    Path(spec.request).parent.mkdir(parents=True)
    Path(spec.request).write_text(codec.dumps(spec))
    command = [sys.executable, "-m", "frenzy.trainer.prepare_data", "--request", spec.request, "--count", "2"]
    with subprocess.Popen([*command, "--rank", "1"], stdout=subprocess.DEVNULL) as helper:
        first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (first.returncode, helper.returncode) == (ExitCode.DONE, ExitCode.DONE), first.stdout
    assert codec.loads(PreparingResult, Path(spec.result).read_text()) == alone


def test_data_that_cannot_be_used_say_why(spec: PreparingSpec) -> None:
    bad = replace(spec, job=replace(spec.job, data=replace(spec.job.data, path="/nowhere/at/all.txt")))
    result = run(bad)
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "data.path" in result.detail


def test_a_store_without_folders_holds_prepared_data_too(spec: PreparingSpec) -> None:
    remote = replace(spec, run_dir="memory://prepared/runs/r1")
    found = run(remote).prepared
    assert found is not None
    packed = frozen_data(found, remote.data, remote.job.data)
    assert packed.place.startswith("memory://")
    assert len(SequenceReader(packed).read(np.array([0, 1]))) == 2


def test_the_process_answers_by_a_file_and_its_exit_code(spec: PreparingSpec) -> None:
    ended = _process(codec.dumps(spec))
    assert ended.returncode == ExitCode.DONE, ended.stdout
    result = codec.loads(PreparingResult, Path(spec.result).read_text())
    assert result.prepared is not None
    sign = codec.loads(Heartbeat, Path(spec.signs).read_text())
    assert sign.phase


def test_a_request_that_is_none_is_refused(spec: PreparingSpec) -> None:
    assert _process(json.dumps({"run_key": "r1"})).returncode == ExitCode.BAD_CONFIG_OR_DATA


def _process(request: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "frenzy.trainer.prepare_data"]
    return subprocess.run(command, input=request, capture_output=True, text=True, check=False)


def test_a_process_that_is_told_to_stop_leaves_no_half_of_a_shard(spec: PreparingSpec, tmp_path: Path) -> None:
    with (tmp_path / "text.txt").open("w") as text:
        for _ in range(2000):
            text.write(f"{TEXT}\n")
    command = [sys.executable, "-m", "frenzy.trainer.prepare_data", "--request", spec.request]
    Path(spec.request).parent.mkdir(parents=True)
    Path(spec.request).write_text(codec.dumps(spec))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not list((tmp_path / "runs/.data").rglob(".shard-*.tmp")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
    assert not list((tmp_path / "runs/.data").rglob(".shard-*.tmp"))
    assert run(spec).prepared is not None


def chatting(spec: PreparingSpec, tmp_path: Path, template: str, *, bad_row: bool = False) -> PreparingSpec:
    rows = [
        [{"role": "user", "content": "to be?"}, {"role": "assistant", "content": "or not to be"}] for _ in range(40)
    ]
    if bad_row:
        del rows[4][1]
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps({"messages": each}) for each in rows))
    data = replace(spec.job.data, path=str(tmp_path / "chats.jsonl"), messages=MessagesSpec(template=template))
    return replace(spec, job=replace(spec.job, data=data))


MARKING = "{% for each in messages %}{% generation %}{{ each.content if each.role == 'assistant' }}{% endgeneration %}"


def test_prepared_conversations_say_what_counts_and_bring_their_template(spec: PreparingSpec, tmp_path: Path) -> None:
    chats = chatting(spec, tmp_path, MARKING + "{{ each.content if each.role == 'user' }}{% endfor %}")
    prepared = run(chats).prepared
    assert prepared is not None
    packed = frozen_data(prepared, chats.data, chats.job.data)
    tokens, counted, _ = SequenceReader(packed).read_marked(np.arange(packed.num_train))
    assert counted is not None
    assert bytes(tokens[0].tolist()).startswith(b"to be?or not to be")
    assert bytes(tokens[counted].tolist()).startswith(b"or not to beor not to be")
    again = run(chatting(spec, tmp_path, MARKING + "Q: {{ each.content if each.role == 'user' }}{% endfor %}")).prepared
    assert again is not None
    assert again.tokenizer != prepared.tokenizer
    assert (frozen_tokenizer(again, chats.data, tmp_path / "copy") / "chat_template.jinja").exists()


def test_a_row_without_an_answer_ends_the_preparation_with_its_number(spec: PreparingSpec, tmp_path: Path) -> None:
    result = run(chatting(spec, tmp_path, MARKING + "{% endfor %}", bad_row=True))
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "line 5" in result.detail
