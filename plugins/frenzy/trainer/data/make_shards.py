"""Makes the token shards of a data set: sharded, on all cores, in bounded memory, from where it was left.

Several preparers may share the work, or do the same: shards of the same key are the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from frenzy.core.values.job import DataSpec
from frenzy.trainer.data.documents import Part, read_part
from frenzy.trainer.data.encoding import BATCH_CHARACTERS, Encoder, TextBatch, batches, encode_all
from frenzy.trainer.data.source_parts import SEGMENT_BYTES, Source, digest_of, refuse_if_changed
from frenzy.trainer.data.token_shards import Shard, ShardDraft, Shelf
from frenzy.trainer.heartbeats import beat, counting

# Of how texts become shards; a change of either makes other shards.
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """This preparer is number ``rank`` of ``count``; it begins with its own segments and helps with the others.

    The first one tells what was there before; what each of the others tells is what it made.
    """

    rank: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is done of the whole, by whomever, as far as this preparer knows."""

    num_segments_done: int
    num_segments: int
    num_tokens: int

    @property
    def sentence(self) -> str:
        return f"{self.num_segments_done} of {self.num_segments} shards are prepared: {self.num_tokens:,} tokens."


Note = Callable[[Progress], None]


def key_of(source: Source, encoder: Encoder, *, shard_characters: int = SEGMENT_BYTES) -> str:
    """The name of what is made of this content with this tokenizer."""
    segments = " ".join(str(len(each)) for each in source.segments)
    return digest_of(f"{_VERSION} {shard_characters} {source.digest} {encoder.digest} {segments}")


def prepare_shards(
    data: DataSpec,
    source: Source,
    encoder: Encoder,
    place: str,
    *,
    share: Share | None = None,
    note: Note = lambda _: None,
    shard_characters: int = SEGMENT_BYTES,
) -> tuple[Shard, ...]:
    """All shards in ``place``, in order, those that were there before among them. Raises BadInputError."""
    work = _Work(data, source, Shelf(place, encoder.dtype.itemsize), share or Share(), note)
    return work.run(encoder, shard_characters)


class _Work:
    def __init__(self, data: DataSpec, source: Source, shelf: Shelf, share: Share, note: Note) -> None:
        self._data, self._source, self._shelf, self._share, self._note = data, source, shelf, share, note
        self._kept: dict[int, list[Shard]] = {}
        self._made: list[Shard] = []

    def run(self, encoder: Encoder, shard_characters: int) -> tuple[Shard, ...]:
        self._kept = self._shelf.kept()
        self._tell()
        draft: ShardDraft | None = None
        try:
            num_tokens = self._num_tokens() if self._share.rank == 0 else 0
            for batch in encode_all(self._batches(min(BATCH_CHARACTERS, shard_characters)), encoder):
                num_tokens += len(batch.ids)
                beat("preparing the data: tokens made", num_tokens)
                found = self._kept.setdefault(batch.segment, [])
                draft = draft or self._shelf.start(batch.segment, len(found))
                draft.add(batch.ids.tobytes(), num_texts=batch.num_texts, num_characters=batch.num_characters)
                if batch.is_last or draft.num_characters >= shard_characters:
                    self._keep(draft.publish(is_last=batch.is_last))
                    draft = None
        finally:
            if draft is not None:
                draft.discard()
        self._check_source()
        return tuple(shard for segment in range(len(self._source.segments)) for shard in self._kept[segment])

    def _batches(self, num_characters_each: int) -> Iterator[TextBatch]:
        """What is left to encode, own segments first; asked for one segment at a time, while others are at work."""
        numbers = range(len(self._source.segments))
        own = [each for each in numbers if self._is_own(each)]
        others = [each for each in reversed(numbers) if not self._is_own(each)]
        first = len(others) * self._share.rank // self._share.count  # not where another helper is
        for segment in (*own, *others[first:], *others[:first]):
            if not self._is_own(segment) and not self._is_done(segment):
                self._kept[segment] = self._shelf.kept_of(segment)
            if not self._is_done(segment):
                skip = sum(each.num_texts for each in self._kept.get(segment, ()))
                pieces = self._pieces(self._source.segments[segment])
                yield from batches(
                    segment,
                    pieces,
                    skip_texts=skip,
                    cuts=self._data.messages is None,
                    num_characters_each=num_characters_each,
                    on_skip=counting("preparing the data: characters passed that are done"),
                )

    def _pieces(self, parts: tuple[Part, ...]) -> Iterator[tuple[str, bool, int]]:
        for each in parts:
            yield from read_part(each, self._data)

    def _is_own(self, segment: int) -> bool:
        return segment % self._share.count == self._share.rank

    def _is_done(self, segment: int) -> bool:
        found = self._kept.get(segment, [])
        return any(each.is_last for each in found[-1:])

    def _keep(self, shard: Shard) -> None:
        self._kept[shard.segment].append(shard)
        self._made.append(shard)
        if shard.is_last:
            self._tell()

    def _tell(self) -> None:
        self._note(
            Progress(
                num_segments_done=sum(map(self._is_done, self._kept)),
                num_segments=len(self._source.segments),
                num_tokens=self._num_tokens(),
            )
        )

    def _num_tokens(self) -> int:
        return sum(each.num_tokens for found in self._kept.values() for each in found)

    def _check_source(self) -> None:
        """What was made of files that changed meanwhile is of no key."""
        if not self._made:
            return
        try:
            refuse_if_changed(self._data, self._source)
        except Exception:
            self._shelf.discard(self._made)
            raise
