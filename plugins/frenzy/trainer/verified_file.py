"""Files of tensors of which a range is verified without the rest.

    8 bytes  length of the header, little endian
    header   JSON: tensor key -> dtype, shape, offsets; "__metadata__" -> strings
    data     the tensors' bytes, in the order of the header

That is the safetensors format. In a checkpoint's file the metadata hold a digest of every block of the data; blocks
begin anew with each tensor. The manifest holds the digest of the head (length and header), so whoever reads a range
needs the head and the range's blocks. Other files have no digests, nor have checkpoints from before 2026-11-25.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frenzy.core.lifecycle.checkpoint_manifest import FileEntry
from frenzy.core.values.errors import ContractError
from frenzy.core.values.units import KIB, MIB
from frenzy.trainer import files

# Of a rank's part of a small tensor a block is to be little, and of a large one's digests a head.
_LARGE_BYTES: Final = 16 * MIB
_BLOCK_BYTES: Final = {True: 256 * KIB, False: 64 * KIB}
BLOCKS: Final = "frenzy_blocks"
WINDOW_BYTES: Final = 4 * MIB
# A request to a store takes its time, whatever it asks for: several parts of a window are on their way at once.
_PARTS: Final = 4
_DIGEST_LETTERS: Final = 16


class DamagedError(ContractError):
    """Bytes are not those that were written."""


def block_bytes(num_bytes: int) -> int:
    """The size of the blocks of a tensor of so many bytes; the last one may be shorter."""
    return _BLOCK_BYTES[num_bytes >= _LARGE_BYTES]


def no_digests(num_bytes: int) -> str:
    """What stands in a head until a tensor of so many bytes is written: as long as the digests of its blocks."""
    return "0" * _num_letters(num_bytes)


def xxh3_128(data: bytes = b"") -> Any:
    """The digest of whole files and heads. Its library is imported here, for the image of a script may lack it."""
    import xxhash

    return xxhash.xxh3_128(data)


def digests_of(data: Any, block: int) -> str:
    """The digests of the blocks of ``data``, one after another."""
    import xxhash

    view = memoryview(data)
    return "".join(xxhash.xxh3_64_hexdigest(view[at : at + block]) for at in range(0, len(view), block))


def _num_letters(num_bytes: int) -> int:
    return -(-num_bytes // block_bytes(num_bytes)) * _DIGEST_LETTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A tensor's bytes in the file at ``place``. digests: of its blocks; empty where nobody wrote any."""

    place: str
    offset_bytes: int
    num_bytes: int
    digests: str = ""

    def windows(self, first: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Bytes [first, end), and what else is in their blocks, window by window: where each begins, and its bytes.

        A window lasts until the next one is asked for. Raises DamagedError, ContractError, OSError.
        """
        block = block_bytes(self.num_bytes) if self.digests else 1
        if first == end:
            return
        low, high = first - first % block, min(self.num_bytes, -(-end // block) * block)
        size = WINDOW_BYTES if files.local_path(self.place) else WINDOW_BYTES * _PARTS
        memory = memoryview(bytearray(min(size, max(0, high - low))))
        for at in range(low, high, size):
            window = memory[: min(size, high - at)]
            # What came wrong once may be right: damage costs the whole checkpoint.
            if not (self._is_read(at, window) or self._is_read(at, window)):
                raise DamagedError(f"{_name(self.place)} does not have its digest at byte {self.offset_bytes + at}")
            yield at, window

    def _is_read(self, at: int, window: memoryview) -> bool:
        """Fill ``window``; whether its blocks have their digests, where there are any."""
        read_into(self.place, self.offset_bytes + at, window)
        if not self.digests:
            return True
        block = block_bytes(self.num_bytes)
        found, start = digests_of(window, block), at // block * _DIGEST_LETTERS
        return found == self.digests[start : start + len(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """What a head says of a tensor. dtype: as safetensors names it."""

    dtype: str
    shape: tuple[int, ...]
    extent: Extent


def read_into(place: str, start: int, window: memoryview) -> None:
    """Fill ``window`` with the bytes of ``place`` from ``start`` on.

    Raises DamagedError where it ends before, or lies on a disk that cannot read it any more.
    """
    path = files.local_path(place)
    if path is None:
        parts = range(0, len(window), WINDOW_BYTES)
        ranges = [(place, start + at, start + min(len(window), at + WINDOW_BYTES)) for at in parts]
        found = files.patiently(lambda: files.read_ranges(ranges))
        for at, part in zip(parts, found, strict=True):
            window[at : at + len(part)] = part
        return
    try:
        _fill(path, start, window)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise DamagedError(f"{path.name} cannot be read at byte {start} ({error})") from error


def _fill(path: Path, start: int, window: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        done = 0
        while done < len(window):
            num_bytes = file.readinto(window[done:])
            if not num_bytes:
                raise DamagedError(f"{path.name} ends too early")
            done += num_bytes


def read_head(place: str, entry: FileEntry | None = None) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The tensors of the file at ``place`` by key, and its metadata.

    entry: the file's in a manifest. Raises DamagedError where the head does not have the digest that it says,
    ContractError for a file of another kind, OSError where it cannot be read.
    """
    try:
        head = _head(place, entry)
        header = json.loads(head[8:])
        metadata = header.pop("__metadata__", {})
        return dict(_entries(place, len(head), header, metadata.get(BLOCKS, ""))), metadata
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"{_name(place)} is not a fragment file ({error})") from error


def _head(place: str, entry: FileEntry | None) -> bytes:
    if entry is not None and entry.head_bytes:
        head = _read(place, 0, entry.head_bytes)
        if xxh3_128(head).hexdigest() != entry.xxh3_128:
            raise DamagedError(f"{_name(place)} does not have its digest")
        return head
    size = files.size(place) or 0
    length = _read(place, 0, min(8, size))
    return length + _read(place, 8, max(0, min(int.from_bytes(length, "little"), size - 8)))


def _read(place: str, start: int, num_bytes: int) -> bytes:
    found = bytearray(num_bytes)
    read_into(place, start, memoryview(found))
    return bytes(found)


def _entries(place: str, start: int, header: dict[str, Any], blocks: str) -> Iterator[tuple[str, TensorEntry]]:
    done = 0
    for key, each in header.items():
        first, end = each["data_offsets"]
        upto = done + _num_letters(end - first)
        extent = Extent(place=place, offset_bytes=start + first, num_bytes=end - first, digests=blocks[done:upto])
        yield key, TensorEntry(dtype=each["dtype"], shape=tuple(each["shape"]), extent=extent)
        done = upto


def damage_of(
    place: str, entry: FileEntry, on_progress: files.OnProgress = lambda _: None, *, only_head: bool = False
) -> str | None:
    """What is wrong with a file whose head has digests; None where it is as it was written. Raises OSError."""
    try:
        tensors, _ = read_head(place, entry)
        on_progress(entry.head_bytes)
        for each in () if only_head else tensors.values():
            for _, window in each.extent.windows(0, each.extent.num_bytes):
                on_progress(len(window))
    except ContractError as error:
        return error.reason.sentence
    return None


def _name(place: str) -> str:
    return place.rpartition("/")[2]
