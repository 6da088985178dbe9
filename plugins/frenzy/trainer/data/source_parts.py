"""A data set cut into segments that can be read apart from each other, and the digest of its content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from frenzy.core.values import codec
from frenzy.core.values.job import DataSpec
from frenzy.trainer import files
from frenzy.trainer.data.documents import Part, format_of, is_compressed, list_files, read_footer
from frenzy.trainer.outcome import BadInputError

SEGMENT_BYTES: Final = 64 * 1024**2
_BLOCK_BYTES: Final = 2**20
# What an object store says of a file's content, so that it need not be read.
_ENTITY_TAGS: Final = ("ETag", "etag", "md5Hash", "content_md5", "crc32c")
_CHANGING: Final = ("size", "mtime", "LastModified", "last_modified", *_ENTITY_TAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """digest: of the content, in order. segments: each some parts that follow each other, about as large as wished.

    stamps: what each file looked like when its digest was taken.
    """

    digest: str
    segments: tuple[tuple[Part, ...], ...]
    stamps: tuple[str, ...]


def survey(
    data: DataSpec, *, segment_bytes: int = SEGMENT_BYTES, on_progress: files.OnProgress = lambda _: None
) -> Source:
    """What is there to prepare. Reads each file once, unless its store knows a digest. Raises BadInputError.

    on_progress: told the bytes of each block that was read, in this thread.
    """
    fs, places = _opened(data)
    stamps = tuple(_stamp(fs, each) for each in places)
    works = [partial(_content_digest, fs, each) for each in places]
    digests = files.told(works, on_progress, num_threads=os.cpu_count() or 1)
    forms = [format_of(each, data) for each in places]
    content = [_reading(data), *(f"{form} {digest}" for form, digest in zip(forms, digests, strict=True))]
    return Source(
        digest=digest_of("\n".join(content)),
        segments=tuple(_segments(fs, places, forms, segment_bytes)),
        stamps=stamps,
    )


def _reading(data: DataSpec) -> str:
    """What of each row is read, and as what."""
    if data.messages is None:
        return data.text_column
    return codec.dumps(replace(data.messages, template=""))


def refuse_if_changed(data: DataSpec, source: Source) -> None:
    """Raises BadInputError where a file is no longer what its digest says."""
    fs, places = _opened(data)
    if tuple(_stamp(fs, each) for each in places) != source.stamps:
        allowed = "its files changed while they were read; start the run again when nobody writes there"
        raise BadInputError("data.path", data.path, allowed)


def digest_of(text: str | bytes) -> str:
    """32 hexadecimal digits."""
    return hashlib.blake2b(text.encode() if isinstance(text, str) else text, digest_size=16).hexdigest()


def _opened(data: DataSpec) -> tuple[Any, list[str]]:
    import fsspec

    fs, _ = fsspec.core.url_to_fs(data.path)
    fs.invalidate_cache()
    return fs, list_files(data)


def _stamp(fs: Any, place: str) -> str:
    known = fs.info(place)
    return codec.dumps({name: str(known[name]) for name in _CHANGING if known.get(name) is not None})


def _content_digest(fs: Any, place: str, tell: files.OnProgress) -> str:
    known = fs.info(place)
    tag = next((str(known[name]) for name in _ENTITY_TAGS if known.get(name)), None)
    if tag is not None:
        return digest_of(f"{tag} {known['size']}")
    found = hashlib.blake2b(digest_size=16)
    with fs.open(place, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
            tell(len(block))
    return found.hexdigest()


def _segments(fs: Any, places: list[str], forms: list[str], most_bytes: int) -> Iterator[tuple[Part, ...]]:
    """Small files together, large ones in ranges where their format has any."""
    together: list[Part] = []
    num_bytes = 0
    for place, form in zip(places, forms, strict=True):
        size = int(fs.size(place) or 0)
        if size > most_bytes:
            if together:
                yield tuple(together)
            together, num_bytes = [], 0
            yield from ((each,) for each in _ranges(fs, Part(place=place, form=form), size, most_bytes))
            continue
        if num_bytes + size > most_bytes:
            yield tuple(together)
            together, num_bytes = [], 0
        together.append(Part(place=place, form=form))
        num_bytes += size
    if together:
        yield tuple(together)


def _ranges(fs: Any, whole: Part, size: int, most_bytes: int) -> Iterator[Part]:
    cuts = [0]
    if whole.form == "jsonl" and not is_compressed(whole.place):
        cuts += range(most_bytes, size, most_bytes)
    elif whole.form == "parquet":
        with fs.open(whole.place, "rb") as file:
            footer = read_footer(file, whole.place)
        num_bytes = 0
        for group in range(footer.num_row_groups):
            if num_bytes >= most_bytes:
                cuts.append(group)
                num_bytes = 0
            num_bytes += footer.row_group(group).total_byte_size
    for start, stop in zip(cuts, [*cuts[1:], None], strict=True):
        yield Part(place=whole.place, form=whole.form, start=start, stop=stop)
