"""Prepared tokens as equal sequences of a job: how many there are, and reading them by index.

Local shards are read with plain reads, never mapped: the memory of a virtual GPU must hold tensors only.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.job import DataSpec, TrainingJob
from frenzy.core.values.resource_plan import short_hash
from frenzy.trainer import files
from frenzy.trainer.data.chat_tokens import MarkedTokens, encoder_of, unmarked
from frenzy.trainer.data.conversations import words_of
from frenzy.trainer.data.documents import documents
from frenzy.trainer.data.make_shards import Note, Share, key_of, prepare_shards
from frenzy.trainer.data.source_parts import Source, digest_of, survey
from frenzy.trainer.data.token_shards import Shard
from frenzy.trainer.heartbeats import counting
from frenzy.trainer.outcome import BadInputError, one_line

SURVEYING: Final = "reading what the data are: bytes read"
_MOST_OPEN_FILES: Final = 256
# Some 200 bytes for each shard of 64 MiB: a hundred times 100 GB of text.
_MOST_INDEX_BYTES: Final = 64 * 1024**2
# Sequences are read in no order: of a larger data set each read would fetch a shard.
_MOST_COPIED_BYTES: Final = 4 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedData:
    """Token ids in shards: ``num_train`` sequences to train on, then ``num_validation`` held out.

    place: folder or fsspec URL of the shards, which hold raw little-endian ids of ``num_bytes_per_token`` bytes
    (2 or 4). num_tokens counts all. digest: of the tokens. is_marked: ids carry the marks of conversations.
    """

    place: str
    shards: tuple[Shard, ...]
    num_bytes_per_token: int
    sequence_length: int
    num_train: int
    num_validation: int
    num_tokens: int
    digest: str
    is_marked: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.num_bytes_per_token == 2 else "<u4")


class _Span(NamedTuple):
    """Bytes [start, stop) of a shard."""

    shard: str
    start: int
    stop: int


class SequenceReader:
    """Reads sequences of a PackedData by index; no tokens are kept in memory.

    Shards on another store are copied to ``cache`` when they are first needed, if all of them have room there;
    else, and without it, only the bytes of the sequences are fetched.
    """

    def __init__(self, packed: PackedData, cache: Path | None = None) -> None:
        self._packed = packed
        self._starts = [0, *accumulate(each.num_tokens for each in packed.shards)]
        folder = files.local_path(packed.place)
        self._copies = None if folder or not cache or not _has_room(cache, packed) else cache / "shards"
        if self._copies is not None:
            self._copies.mkdir(parents=True, exist_ok=True)
        local = folder or self._copies
        self._files = None if local is None else _LocalFiles(local)

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids of shape (len(indices), sequence_length)."""
        return self.read_marked(indices).tokens

    def read_marked(self, indices: NDArray[np.int64]) -> MarkedTokens:
        """The same with their marks, if they carry any."""
        spans = [list(self._spans(int(index))) for index in indices]
        raw = self._fetch([span for each in spans for span in each])
        found = np.empty((len(indices), self._packed.sequence_length), dtype=self._packed.dtype)
        for row, each in enumerate(spans):
            found[row] = np.frombuffer(b"".join(next(raw) for _ in each), dtype=self._packed.dtype)
        return unmarked(found, is_marked=self._packed.is_marked)

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def _spans(self, index: int) -> Iterator[_Span]:
        """Where the sequence lies: in one shard, or at the end of one and the start of those that follow."""
        width, length = self._packed.num_bytes_per_token, self._packed.sequence_length
        first, end = index * length, (index + 1) * length
        shard = int(np.searchsorted(self._starts, first, side="right")) - 1
        while first < end:
            start = self._starts[shard]
            stop = min(end, self._starts[shard + 1])
            if stop > first:
                yield _Span(self._packed.shards[shard].name, (first - start) * width, (stop - start) * width)
            first, shard = stop, shard + 1

    def _fetch(self, spans: list[_Span]) -> Iterator[bytes]:
        if self._files is None:
            return iter(_read_ranges([(f"{self._packed.place}/{each.shard}", *each[1:]) for each in spans]))
        if self._copies is not None:
            for name in {each.shard for each in spans}:
                _copy(f"{self._packed.place}/{name}", self._copies / name)
        return map(self._files.read, spans)


def _read_ranges(ranges: list[tuple[str, int, int]]) -> list[bytes]:
    """As ``files.read_ranges``. Raises TemporaryError."""
    try:
        return files.patiently(lambda: files.read_ranges(ranges))
    except OSError as error:
        raise _away(ranges[0][0], error) from error


def _away(place: str, error: OSError) -> TemporaryError:
    detail = f"Prepared tokens at {place} could not be read ({one_line(error)})."
    return TemporaryError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail), retry_after_s=60)


class _LocalFiles:
    """Shards in a folder, of which some stay open. Others may write there meanwhile: no link is followed."""

    def __init__(self, folder: Path) -> None:
        self._folder = files.open_folder(folder)
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, span: _Span) -> bytes:
        if span.shard not in self._open:
            if len(self._open) >= _MOST_OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[span.shard] = files.open_file(span.shard, self._folder)
        return os.pread(self._open[span.shard], span.stop - span.start, span.start)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
        os.close(self._folder)


def pack(
    job: TrainingJob,
    tokenizer: Any,
    folder: str | Path,
    *,
    share: Share | None = None,
    source: Source | None = None,
    note: Note = lambda _: None,
) -> PackedData:
    """The job's data in ``folder``, made on the first call and found again on later ones.

    Found by the specification, not by the source's content: a run goes on with the text it began with even if
    somebody edits the file. source: what all who share the work agreed on. Raises BadInputError when there is too
    little text.
    """
    index = f"{folder}/{index_name(job, tokenizer)}"
    packed = find_packed(index, job.data)
    if packed is None:
        encoder = encoder_of(job.data, tokenizer)
        source = source or survey(job.data, on_progress=counting(SURVEYING))
        place = f"{folder}/{key_of(source, encoder)}"
        shards = prepare_shards(job.data, source, encoder, place, share=share, note=note)
        packed = packed_of(job.data, place, shards, encoder.dtype.itemsize)
        _check_held_out(job, packed)
        files.write_text(index, codec.dumps(packed))
    return packed


def index_name(job: TrainingJob, tokenizer: Any) -> str:
    """The file that says which prepared tokens the job trains on."""
    document = json.loads(codec.dumps(job.data))
    # Unless they say something: an index that was made before there were these fields is found again.
    for name in ("messages", "document_masks"):
        if not document[name]:
            del document[name]
    return f"tokens-{short_hash(json.dumps(document), str(len(tokenizer)), job.model.tokenizer_used)}.json"


def _check_held_out(job: TrainingJob, packed: PackedData) -> None:
    """Raises BadInputError where no answer is in what a validation or the evaluation is to score."""
    asked = [job.validation.max_sequences] if job.validation.every_steps is not None else []
    asked += [job.evaluation.max_sequences] if job.evaluation.enabled else []
    if not packed.is_marked or not asked or job.data.path != (job.validation.path or job.data.path):
        return
    first = packed.num_train if packed.num_validation else 0
    count = min(*asked, packed.num_validation or packed.num_train)
    reader = SequenceReader(packed)
    has_answers = any(_has_counted(reader, index) for index in range(first, first + count))
    reader.close()
    if not has_answers:
        allowed = f"no answer is in the {count} sequences that are to be scored; hold out more, or score more of them"
        own, share = job.validation.path, job.data.validation_fraction
        raise BadInputError("validation.path" if own else "data.validation_fraction", own or share, allowed)


def _has_counted(reader: SequenceReader, index: int) -> bool:
    counted = reader.read_marked(np.array([index])).counted
    return counted is None or bool(counted.any())


def training_texts(data: DataSpec, on_progress: files.OnProgress = lambda _: None) -> Iterator[str]:
    """The text before the held-out part, by characters: what a tokenizer may learn from.

    All is counted first, and on_progress told the characters of each piece.
    """
    total = 0
    for text in _words(data):
        total += len(text)
        on_progress(len(text))
    allowed = round(total * (1 - data.validation_fraction))
    for text in _words(data):
        if allowed <= 0:
            return
        yield text[:allowed]
        allowed -= len(text)


def _words(data: DataSpec) -> Iterator[str]:
    return (words_of(data, text) for text, _ in documents(data))


def find_packed(index: str, data: DataSpec) -> PackedData | None:
    """What was made before, if it is what would be made of so many tokens; the run's code may have written it."""
    try:
        packed = codec.loads(PackedData, files.read_bytes(index, most_bytes=_MOST_INDEX_BYTES))
    except (FileNotFoundError, ContractError):
        return None
    except OSError as error:
        raise _away(index, error) from error
    # The folder may have been moved or mounted elsewhere since.
    folder, key = index.rpartition("/")[0], packed.place.rpartition("/")[2]
    place = f"{folder}/{key}"
    if (
        packed.num_bytes_per_token not in (2, 4)
        or not key.isalnum()
        or not are_whole(packed.shards, place, packed.num_bytes_per_token)
    ):
        return None
    try:
        made = packed_of(data, place, packed.shards, packed.num_bytes_per_token)
    except BadInputError:
        return None
    return made if made == replace(packed, place=place) else None


def are_whole(shards: Iterable[Shard], place: str, num_bytes_per_token: int) -> bool:
    """Whether all ``shards`` are in ``place`` with their sizes."""
    sizes = files.sizes(place)
    return all(sizes.get(each.name) == each.num_tokens * num_bytes_per_token for each in shards)


def packed_of(data: DataSpec, place: str, shards: tuple[Shard, ...], num_bytes_per_token: int) -> PackedData:
    """``shards`` in ``place`` as sequences of ``data``. Raises BadInputError when there are too few tokens for one."""
    num_tokens = sum(each.num_tokens for each in shards)
    num_train, num_validation = split(num_tokens // data.sequence_length, data.validation_fraction)
    if num_train < 1:
        allowed = f"its {num_tokens} tokens do not fill one training sequence of {data.sequence_length}"
        raise BadInputError("data.path", data.path, f"{allowed}; give more text or a smaller data.sequence_length")
    return PackedData(
        place=place,
        shards=shards,
        num_bytes_per_token=num_bytes_per_token,
        sequence_length=data.sequence_length,
        num_train=num_train,
        num_validation=num_validation,
        num_tokens=num_tokens,
        digest=digest_of(" ".join(each.digest for each in shards)),
        is_marked=data.messages is not None,
    )


def split(num_sequences: int, validation_fraction: float) -> tuple[int, int]:
    """Sequences to train on and to hold out: at least one is held out if there are two to share."""
    if validation_fraction == 0 or num_sequences < 2:
        return num_sequences, 0
    num_validation = max(1, int(num_sequences * validation_fraction))
    return num_sequences - num_validation, num_validation


def _has_room(cache: Path, packed: PackedData) -> bool:
    num_bytes = packed.num_tokens * packed.num_bytes_per_token
    return num_bytes <= _MOST_COPIED_BYTES and 2 * num_bytes <= shutil.disk_usage(cache).free


def _copy(place: str, target: Path) -> None:
    """Other ranks of the node may copy the same shard."""
    if target.exists():
        return
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    files.download_file(place, temporary)
    temporary.replace(target)
