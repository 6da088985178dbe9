"""One rank's tensors in one file: the safetensors format, written and read in small pieces.

A rank may live under a hard memory limit, so neither direction holds more than one chunk
beside the tensors themselves. Reading executes nothing: there is no pickle anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import xxhash

from frenzy.core.lifecycle.checkpoint_manifest import FileEntry
from frenzy.core.values.errors import ContractError
from frenzy.trainer.files import local_path
from frenzy.trainer.verified_file import (
    BLOCKS,
    WINDOW_BYTES,
    Extent,
    TensorEntry,
    block_bytes,
    digests_of,
    no_digests,
    read_head,
    read_into,
)

CHUNK_BYTES: Final = WINDOW_BYTES

_DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES: Final = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file, row by row."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    extent: Extent

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def whole(self) -> torch.Tensor:
        """The tensor in its own dtype and shape, on the host."""
        flat = torch.empty(self.numel, dtype=self.dtype)
        self.read_into(flat)
        return flat.view(self.shape)

    def read_into(self, target: torch.Tensor, start: int = 0) -> None:
        """Fill the flat ``target`` with elements from ``start`` on, converting its dtype and device.

        Raises DamagedError where blocks with a digest are not what was written.
        """
        first, extent = start * self.dtype.itemsize, self.extent
        straight = local_path(extent.place) is not None and not extent.digests
        if straight and target.device.type == "cpu" and target.dtype == self.dtype and target.is_contiguous():
            read_into(extent.place, extent.offset_bytes + first, _bytes_of(target))
        else:
            self._read_by_windows(target, first, first + target.numel() * self.dtype.itemsize)

    def _read_by_windows(self, target: torch.Tensor, first: int, end: int) -> None:
        size = self.dtype.itemsize
        for at, window in self.extent.windows(first, end):
            low, high = max(at, first), min(at + len(window), end)
            values = torch.frombuffer(window[low - at : high - at], dtype=self.dtype)
            target.narrow(0, (low - first) // size, values.numel()).copy_(values)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a flat, contiguous host tensor, to be read or written in place."""
    return memoryview(tensor.detach().view(torch.uint8).numpy())  # type: ignore[arg-type]  # the stubs' Buffer is 3.12's


def write_fragments(
    path: Path,
    tensors: Sequence[tuple[str, torch.Tensor]],
    metadata: Mapping[str, str],
    on_progress: Callable[[int], None] = lambda _: None,
) -> FileEntry:
    """Write flat ``tensors`` to ``path``, with a digest for each block. on_progress: told of chunks."""
    shapes = [(key, each.dtype, (each.numel(),)) for key, each in tensors]
    head = _header(shapes, {**metadata, BLOCKS: "".join(no_digests(each.nbytes) for _, each in tensors)})
    digests, num_bytes = [], len(head)
    with path.open("wb", buffering=0) as file:
        _write(file, head)
        on_progress(len(head))
        for block, chunk in ((block_bytes(each.nbytes), piece) for _, each in tensors for piece in _pieces(each)):
            digests.append(digests_of(chunk, block))
            _write(file, chunk)
            num_bytes += len(chunk)
            on_progress(len(chunk))
        head = _header(shapes, {**metadata, BLOCKS: "".join(digests)})
        file.seek(0)
        _write(file, head)
    digest = xxhash.xxh3_128_hexdigest(head)
    return FileEntry(path=path.name, num_bytes=num_bytes, xxh3_128=digest, head_bytes=len(head))


def _write(file: Any, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    per_chunk = max(1, CHUNK_BYTES // tensor.dtype.itemsize)
    for done in range(0, tensor.numel(), per_chunk):
        piece = tensor.detach().narrow(0, done, min(per_chunk, tensor.numel() - done))
        yield _bytes_of(piece.cpu().contiguous())


def _header(tensors: Iterable[tuple[str, torch.dtype, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for key, dtype, shape in tensors:
        end = offset + math.prod(shape) * dtype.itemsize
        header[key] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class TensorWriter:
    """A safetensors file whose tensors come one after another: no more than one of them need be in memory.

    tensors: key, dtype and shape of each, in the order in which they will come.
    """

    def __init__(self, path: Path, tensors: Iterable[tuple[str, torch.dtype, Sequence[int]]]) -> None:
        self._file = path.open("wb")
        self._put([_header(tensors, {"format": "pt"})])

    def write(self, tensor: torch.Tensor) -> None:
        self._put(_pieces(tensor.reshape(-1)))

    def _put(self, pieces: Iterable[Any]) -> None:
        try:
            for piece in pieces:
                self._file.write(piece)
        except OSError:
            # What is left in the buffer fails once more; the file is closed all the same.
            with suppress(OSError):
                self._file.close()
            raise

    def close(self) -> None:
        self._file.close()


def read_header(place: str, entry: FileEntry | None = None) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of the file at ``place`` by key, and its metadata: see ``read_head``, which says what it raises."""
    tensors, metadata = read_head(place, entry)
    try:
        return {key: _stored(each) for key, each in tensors.items()}, metadata
    except (ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{place.rpartition('/')[2]} is not a fragment file ({error})") from error


def _stored(entry: TensorEntry) -> StoredTensor:
    stored = StoredTensor(dtype=_DTYPES[entry.dtype], shape=entry.shape, extent=entry.extent)
    if stored.numel * stored.dtype.itemsize != entry.extent.num_bytes:
        raise ValueError("a tensor's bytes are not those of its shape")
    return stored
