"""Documents become equal sequences; the end is held out."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from frenzy.core.values.errors import TemporaryError
from frenzy.core.values.job import DataSpec, MessagesSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.trainer import files
from frenzy.trainer.data.documents import documents, list_files, pieces
from frenzy.trainer.data.encoding import batches
from frenzy.trainer.data.packing import SequenceReader, find_packed, index_name, pack, split, training_texts
from frenzy.trainer.data.source_parts import survey
from frenzy.trainer.data.tokenizer import byte_tokenizer, train_tokenizer
from frenzy.trainer.outcome import BadInputError


def _job(path: Path, **data: Any) -> TrainingJob:
    return TrainingJob(
        name="tiny",
        model=ModelSpec(config={"model_type": "gpt2"}),
        data=DataSpec(path=str(path), **{"sequence_length": 8, **data}),
        training=TrainingSpec(max_steps=1),
    )


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


def test_documents_are_joined_with_the_end_of_text(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n\n{"text": "defghij"}\n{"text": "klmno"}\n')
    packed = pack(_job(tmp_path / "a.jsonl", validation_fraction=0.0), tokenizer, tmp_path / "out")
    assert (packed.num_train, packed.num_validation, packed.num_tokens) == (2, 0, 18)
    found = SequenceReader(packed).read(np.array([1, 0]))
    assert found.tolist() == [
        [*b"hij", 256, *b"klmn"],
        [*b"abc", 256, *b"defg"],
    ]


def test_second_packing_is_the_first_one(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    first = pack(_job(tmp_path / "a.txt"), tokenizer, tmp_path / "out")
    (tmp_path / "a.txt").write_text("y" * 500)
    assert pack(_job(tmp_path / "a.txt"), tokenizer, tmp_path / "out") == first


def test_half_written_shard_is_made_again(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    first = pack(_job(tmp_path / "a.txt"), tokenizer, tmp_path / "out")
    shard = Path(first.place) / first.shards[0].name
    shard.write_bytes(b"short")
    assert pack(_job(tmp_path / "a.txt"), tokenizer, tmp_path / "out") == first
    assert shard.stat().st_size == 2 * first.num_tokens


@given(num_sequences=some.integers(0, 10_000), fraction=some.floats(0, 0.499))
def test_split_holds_out_some_and_trains_on_most(num_sequences: int, fraction: float) -> None:
    num_train, num_validation = split(num_sequences, fraction)
    assert num_train + num_validation == num_sequences
    assert num_train >= num_validation
    if num_sequences >= 2 and fraction > 0:
        assert num_validation >= 1
    if fraction == 0:
        assert num_validation == 0


def test_folder_stands_for_its_data_files_in_name_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden.txt", "_SUCCESS", "notes.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [text for text, _ in documents(DataSpec(path=str(tmp_path)))] == ["a.txt", "b.txt", "sub/c.txt"]
    assert len(list_files(DataSpec(path=f"{tmp_path}/*.txt"))) == 2


def test_unknown_ending_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(BadInputError, match="auto knows the endings"):
        list(documents(DataSpec(path=str(tmp_path / "a.csv"))))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError, match="must be UTF-8"):
        list(documents(DataSpec(path=str(tmp_path / "a.txt"))))


def test_tokenizer_learns_only_from_text_that_is_not_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 90 + "z" * 10)
    assert "".join(training_texts(DataSpec(path=str(tmp_path / "a.txt"), validation_fraction=0.1))) == "a" * 90


def test_an_index_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "index.json").mkdir()
    with pytest.raises(TemporaryError, match="could not be read"):
        find_packed(str(tmp_path / "index.json"), DataSpec(path="none"))
    assert find_packed(str(tmp_path / "gone.json"), DataSpec(path="none")) is None


def test_bytes_that_another_store_lacks_are_an_error(tmp_path: Path) -> None:
    place = f"memory://{tmp_path}/shard"
    with pytest.raises(FileNotFoundError):
        files.read_ranges([(place, 0, 4)])
    files.write_text(place, "123456")
    assert files.read_ranges([(place, 0, 4)]) == [b"1234"]
    with pytest.raises(OSError, match="gave 2 bytes from 4 on, not 4"):
        files.read_ranges([(place, 4, 8)])


def test_half_a_character_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "whole"}\n{"text": "broken \\ud83d"}\n')
    with pytest.raises(BadInputError, match=r"a\.jsonl line 2' is refused; its text has half of a character"):
        list(documents(DataSpec(path=str(tmp_path))))


def test_reading_is_told_piece_by_piece(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"text": "abc"}\n' * 100_000)
    blocks: list[int] = []
    characters: list[int] = []
    skipped: list[int] = []
    data = DataSpec(path=str(tmp_path))
    survey(data, on_progress=blocks.append)
    assert sum(blocks) == 3_200_000 and len(blocks) == 4, "of a megabyte each"
    list(training_texts(data, characters.append))
    assert characters == [3] * 200_000
    list(batches(0, pieces(data), skip_texts=7, on_skip=skipped.append))
    assert skipped == [3] * 7


@given(text=some.text(max_size=200))
def test_byte_tokens_are_the_bytes(text: str) -> None:
    tokenizer = _TOKENIZERS["byte"]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


@given(text=some.text(max_size=200))
def test_trained_tokens_give_the_text_back(text: str) -> None:
    tokenizer = _TOKENIZERS["trained"]
    assert len(tokenizer) <= 300
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


_TOKENIZERS = {
    "byte": byte_tokenizer(),
    "trained": train_tokenizer(["the quick brown fox jumps over the lazy dog " * 20], vocab_size=300),
}


@pytest.mark.parametrize(
    "lie", [{"sequence_length": 2**40}, {"num_validation": 2**40}, {"num_train": 0}, {"num_bytes_per_token": 1}]
)
def test_an_index_that_was_written_by_somebody_else_is_not_believed(
    tmp_path: Path, tokenizer: Any, lie: dict[str, int]
) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    first = pack(_job(tmp_path / "a.txt"), tokenizer, tmp_path / "out")
    (index,) = (tmp_path / "out").glob("tokens-*.json")
    told = {**json.loads(index.read_text()), **lie}
    index.write_text(json.dumps(told))
    size = told["num_tokens"] * told["num_bytes_per_token"]
    os.truncate(Path(first.place) / first.shards[0].name, size)
    assert pack(_job(tmp_path / "a.txt"), tokenizer, tmp_path / "out") == first


def test_tokens_that_were_prepared_before_there_were_conversations_are_found_again() -> None:
    data = DataSpec(path="/data/words.txt", sequence_length=64)
    job = TrainingJob(name="x", model=ModelSpec(config={}), data=data, training=TrainingSpec(max_steps=1))
    assert index_name(job, range(257)) == "tokens-0be473797c11.json", "the name of the release before"
    of_chats = replace(job, data=replace(data, messages=MessagesSpec()))
    assert index_name(of_chats, range(257)) != index_name(job, range(257))
