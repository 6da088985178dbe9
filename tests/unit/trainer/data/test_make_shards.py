"""Prepared shards hold the tokens of the texts, one after the other, however they are made."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pyarrow import parquet
from tests.unit.trainer.data.test_packing import _job as job_of

from frenzy.core.values.job import DataSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import files
from frenzy.trainer.data.documents import Part, documents, read_part
from frenzy.trainer.data.encoding import Encoder, TextBatch, encode_all
from frenzy.trainer.data.make_shards import Progress, Share, key_of, prepare_shards
from frenzy.trainer.data.packing import PackedData, SequenceReader, find_packed, pack
from frenzy.trainer.data.run_data import run_data
from frenzy.trainer.data.source_parts import survey
from frenzy.trainer.data.token_shards import Shard
from frenzy.trainer.data.tokenizer import byte_tokenizer, train_tokenizer
from frenzy.trainer.outcome import BadInputError

LINES = [
    f"{number} the quick brown fox jumps over the lazy dog, ünïcode {'x' * (number % 17)}" for number in range(300)
]
BYTES = byte_tokenizer()
WORDS = train_tokenizer(LINES, vocab_size=300)


def as_text(folder: Path) -> Path:
    return written(folder / "a.txt", "\n".join(LINES).encode())


def as_files(folder: Path) -> Path:
    for number, line in enumerate(LINES):
        written(folder / f"{number:04}.txt", line.encode())
    return folder


def as_jsonl(folder: Path) -> Path:
    return written(folder / "a.jsonl", jsonl(LINES))


def as_parquet(folder: Path) -> Path:
    parquet.write_table(arrow.table({"text": [*LINES, None, ""]}), folder / "a.parquet", row_group_size=23)
    return folder / "a.parquet"


def as_saved_by_datasets(folder: Path) -> Path:
    from datasets import Dataset, DatasetDict

    DatasetDict(train=Dataset.from_dict({"text": LINES}), test=Dataset.from_dict({"text": ["no"]})).save_to_disk(folder)
    return folder


def as_arrow_file(folder: Path) -> Path:
    table = arrow.table({"text": LINES})
    with arrow.ipc.new_file(folder / "a.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=40)
    return folder / "a.arrow"


def as_gzip(folder: Path) -> Path:
    return written(folder / "a.jsonl.gz", gzip.compress(jsonl(LINES)))


def as_bzip2(folder: Path) -> Path:
    return written(folder / "a.txt.bz2", bz2.compress("\n".join(LINES).encode()))


def as_xz(folder: Path) -> Path:
    return written(folder / "a.jsonl.xz", lzma.compress(jsonl(LINES)))


def as_zstandard(folder: Path) -> Path:
    return written(folder / "a.jsonl.zst", arrow.Codec("zstd").compress(jsonl(LINES), asbytes=True))


FORMS = [
    *(as_text, as_files, as_jsonl, as_parquet, as_saved_by_datasets),
    *(as_arrow_file, as_gzip, as_bzip2, as_xz, as_zstandard),
]


def jsonl(texts: list[str]) -> bytes:
    return "\n".join(json.dumps({"text": each}) for each in texts).encode()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def expected(data: DataSpec, tokenizer: Any) -> list[int]:
    """One text after the other, as the wrapper of the library encodes it."""
    ids: list[int] = []
    for text, ends in documents(data):
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [tokenizer.eos_token_id] if ends else []
    return ids


@dataclass
class Made:
    """What one preparer made; it dies once so many segments are done."""

    place: str
    dies_after: int = 10**6
    told: list[Progress] = field(default_factory=list)

    def note(self, progress: Progress) -> None:
        self.told.append(progress)
        if progress.num_segments_done >= self.dies_after:
            raise KeyboardInterrupt

    def run(self, data: DataSpec, tokenizer: Any = BYTES, share: Share | None = None) -> tuple[Shard, ...]:
        source = survey(data, segment_bytes=2_000)
        encoder = Encoder(tokenizer)
        return prepare_shards(data, source, encoder, self.place, share=share, note=self.note, shard_characters=1_500)


def tokens(place: Path, shards: tuple[Shard, ...]) -> list[int]:
    raw = b"".join((place / each.name).read_bytes() for each in shards)
    return [int(each) for each in np.frombuffer(raw, dtype="<u2")]


@pytest.mark.parametrize("tokenizer", [BYTES, WORDS], ids=["bytes", "words"])
@pytest.mark.parametrize("write", FORMS)
def test_shards_of_every_format_hold_the_tokens_of_its_texts_in_order(
    tmp_path: Path, write: Callable[[Path], Path], tokenizer: Any
) -> None:
    (tmp_path / "in").mkdir()
    data = DataSpec(path=str(write(tmp_path / "in")))
    shards = Made(str(tmp_path / "out")).run(data, tokenizer)
    found = tokens(tmp_path / "out", shards)
    assert found == expected(data, tokenizer)
    assert sum(each.num_tokens for each in shards) == len(found)
    assert tokenizer.decode(found).count(LINES[-1]) == 1


@given(
    texts=some.lists(some.text(alphabet="aé\n\r ", max_size=30), min_size=1, max_size=20),
    end=some.sampled_from(["\n", "\r\n", "\n\n"]),
    cuts=some.lists(some.integers(0, 900), max_size=5),
)
def test_each_line_belongs_to_one_range_wherever_a_file_is_cut(texts: list[str], end: str, cuts: list[int]) -> None:
    place = f"memory://{uuid.uuid4().hex}.jsonl"
    fsspec.filesystem("memory").pipe_file(place, end.join(json.dumps({"text": each}) for each in texts).encode())
    bounds: list[int | None] = [0, *sorted(cuts), None]
    found: list[str] = []
    for start, stop in zip(bounds, bounds[1:], strict=False):
        part = Part(place=place, form="jsonl", start=start or 0, stop=stop)
        found += [text for text, ends, _ in read_part(part, DataSpec(path=place)) if ends]
    assert found == texts


@pytest.mark.parametrize(("write", "at_a_segment"), [(as_jsonl, True), (as_gzip, False)])
def test_a_killed_preparation_goes_on_where_it_was(
    tmp_path: Path, write: Callable[[Path], Path], *, at_a_segment: bool
) -> None:
    data = DataSpec(path=str(write(tmp_path)))
    place = tmp_path / "out"
    whole = Made(str(tmp_path / "whole")).run(data)
    if at_a_segment:
        with pytest.raises(KeyboardInterrupt):
            Made(str(place), dies_after=2).run(data)
    else:  # a compressed file is one segment, of many shards
        Made(str(place)).run(data)
        for late in whole[len(whole) // 2 :]:
            (place / late.manifest).unlink()
    before = {each: each.stat().st_mtime_ns for each in place.glob("*.bin") if each.with_suffix(".json").exists()}
    assert len(before) >= 2
    assert Made(str(place)).run(data) == whole
    assert tokens(place, whole) == tokens(tmp_path / "whole", whole)
    assert {each: each.stat().st_mtime_ns for each in before} == before
    assert not list(place.glob(".*"))


def test_those_who_share_the_work_make_what_one_makes(tmp_path: Path) -> None:
    data = DataSpec(path=str(as_jsonl(tmp_path)))
    alone = Made(str(tmp_path / "alone")).run(data)
    found: list[tuple[Shard, ...]] = []
    shares = [Share(rank=0, count=2), Share(rank=1, count=2), Share(), Share()]
    threads = [
        threading.Thread(target=lambda each=each: found.append(Made(str(tmp_path / "all")).run(data, share=each)))
        for each in shares
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4
    assert tokens(tmp_path / "all", alone) == tokens(tmp_path / "alone", alone)


def test_progress_is_told_with_every_segment(tmp_path: Path) -> None:
    made = Made(str(tmp_path / "out"))
    made.run(DataSpec(path=str(as_jsonl(tmp_path))))
    assert [each.num_segments_done for each in made.told] == list(range(made.told[0].num_segments + 1))
    assert made.told[-1].num_tokens == len("".join(LINES).encode()) + len(LINES)


def test_data_that_change_while_they_are_read_leave_no_shard(tmp_path: Path) -> None:
    path = as_jsonl(tmp_path)

    class Meddler(Made):
        def note(self, progress: Progress) -> None:
            path.write_bytes(jsonl(["other", *LINES]))

    with pytest.raises(BadInputError, match="changed while they were read"):
        Meddler(str(tmp_path / "out")).run(DataSpec(path=str(path)))
    assert not list((tmp_path / "out").iterdir())


def test_key_is_that_of_the_content_and_of_the_tokenizer(tmp_path: Path) -> None:
    def key(folder: str, lines: list[str], tokenizer: Any = BYTES) -> str:
        (tmp_path / folder).mkdir()
        path = written(tmp_path / folder / f"{folder}.jsonl", jsonl(lines))
        return key_of(survey(DataSpec(path=str(path))), Encoder(tokenizer))

    first = key("a", LINES)
    assert key("b", LINES) == first
    assert key("c", LINES[1:]) != first
    assert key("d", LINES, WORDS) != first


def test_folder_of_splits_without_one_to_train_on_is_refused_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "validation"]}')
    with pytest.raises(BadInputError, match="it has the splits test, validation"):
        survey(DataSpec(path=str(tmp_path)))


@pytest.fixture
def store() -> Iterator[str]:
    place = f"memory://{uuid.uuid4().hex}"
    yield place
    fsspec.filesystem("memory").rm(place, recursive=True)


def read_all(packed: PackedData, cache: Path | None = None) -> list[list[int]]:
    reader = SequenceReader(packed, cache)
    found: list[list[int]] = reader.read(np.arange(packed.num_train)[::-1]).tolist()
    reader.close()
    return found[::-1]


def spread_over_shards(packed: PackedData, place: str, lengths: list[int]) -> PackedData:
    """The same tokens in shards of ``lengths``, the rest in a last one."""
    raw = files.read_bytes(f"{packed.place}/{packed.shards[0].name}")
    shards, start = [], 0
    for number, length in enumerate([*lengths, packed.num_tokens - sum(lengths)]):
        shards.append(Shard(segment=number, number=0, num_tokens=length, num_texts=1, is_last=True, digest=""))
        stop = start + length * packed.num_bytes_per_token
        fsspec.filesystem("memory").pipe_file(f"{place}/{shards[-1].name}", raw[start:stop])
        start = stop
    values = {name: getattr(packed, name) for name in packed.__slots__}
    return PackedData(**{**values, "place": place, "shards": tuple(shards)})


@pytest.mark.parametrize("copies", [False, True])
def test_a_sequence_may_begin_in_one_shard_and_end_in_a_later_one(tmp_path: Path, store: str, *, copies: bool) -> None:
    job = job_of(as_jsonl(tmp_path), validation_fraction=0.0)
    packed = pack(job, BYTES, tmp_path / "out")
    spread = spread_over_shards(packed, store, [3, 0, 1, 11, 8])
    cache = tmp_path if copies else None
    assert read_all(spread, cache) == read_all(packed)
    assert bool(list(tmp_path.glob("shards/*.bin"))) == copies


def test_nodes_that_share_an_object_store_read_what_the_first_one_froze(tmp_path: Path, store: str) -> None:
    job = job_of(as_jsonl(tmp_path))
    found: dict[int, PackedData] = {}

    def node(rank: int) -> None:
        share = Share(rank=rank, count=2)
        found[rank] = run_data(job, BYTES, RunPaths(store), attempt=1, share=share)

    second = threading.Thread(target=node, args=(1,))
    second.start()
    node(0)
    second.join()
    assert found[0] == found[1]
    as_jsonl(tmp_path).write_bytes(jsonl(["something else"] * 100))
    assert run_data(job, BYTES, RunPaths(store), attempt=2, share=Share()) == found[0]
    assert read_all(found[0]) == read_all(pack_of(tmp_path, store, job))


def pack_of(tmp_path: Path, store: str, job: Any) -> PackedData:
    """The store's folder as a local one."""
    files.fetch_folder(f"{store}/data", tmp_path / "fetched")
    return pack(job, BYTES, tmp_path / "fetched")


@pytest.mark.parametrize("share", [Share(), Share(rank=1, count=2)])
def test_a_shard_that_is_cut_off_is_made_anew_whoever_was_to_make_it(tmp_path: Path, share: Share) -> None:
    data = DataSpec(path=str(as_jsonl(tmp_path)))
    place = tmp_path / "out"
    whole = Made(str(place)).run(data)
    before = tokens(place, whole)
    (place / whole[0].name).write_bytes(b"")
    assert Made(str(place)).run(data, share=share) == whole
    assert tokens(place, whole) == before


def test_an_index_that_no_preparation_wrote_is_not_read_to_its_end(tmp_path: Path) -> None:
    index = tmp_path / "tokens.json"
    with index.open("wb") as file:
        file.truncate(2**40)
    assert find_packed(str(index), DataSpec(path="none")) is None


def test_texts_under_way_are_bounded() -> None:
    under_way, most = 0, 0

    def texts() -> Iterator[TextBatch]:
        nonlocal under_way, most
        for _ in range(40):
            under_way += 1
            most = max(most, under_way)
            yield TextBatch(segment=0, texts=(("x" * 1_000_000, True),))

    for batch in encode_all(texts(), Encoder(BYTES), num_threads=32):
        assert batch.num_characters == 1_000_000
        under_way -= 1
    assert most <= 9
