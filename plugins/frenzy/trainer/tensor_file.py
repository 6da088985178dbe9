"""One rank's tensors in one file: the safetensors format, written and read in small pieces.

A rank may live under a hard memory limit, so neither direction holds more than one chunk
beside the tensors themselves. Reading executes nothing: there is no pickle anywhere.

    8 bytes  length of the header, little endian
    header   JSON: tensor key -> dtype, shape, offsets; "__metadata__" -> strings
    data     the tensors' bytes, in the order of the header
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

CHUNK_BYTES: Final = 4 * 1024**2

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
    """Where a tensor lies in a file, row by row: ``offset_bytes`` counts from the file's start."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def whole(self) -> torch.Tensor:
        """The tensor in its own dtype and shape, on the host."""
        flat = torch.empty(self.numel, dtype=self.dtype)
        self.read_into(flat)
        return flat.view(self.shape)

    def read_into(self, target: torch.Tensor, start: int = 0) -> None:
        """Fill the flat ``target`` with elements from ``start`` on, converting its dtype and device."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset_bytes + start * self.dtype.itemsize)
            if target.device.type == "cpu" and target.dtype == self.dtype and target.is_contiguous():
                _read_exactly(file, _bytes_of(target), self.path)
            else:
                self._read_by_chunks(file, target)

    def _read_by_chunks(self, file: Any, target: torch.Tensor) -> None:
        staging = torch.empty(max(1, CHUNK_BYTES // self.dtype.itemsize), dtype=self.dtype)
        window = _bytes_of(staging)
        for done in range(0, target.numel(), staging.numel()):
            numel = min(staging.numel(), target.numel() - done)
            _read_exactly(file, window[: numel * self.dtype.itemsize], self.path)
            target.narrow(0, done, numel).copy_(staging[:numel])


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a flat, contiguous host tensor, to be read or written in place."""
    return memoryview(tensor.detach().view(torch.uint8).numpy())  # type: ignore[arg-type]  # the stubs' Buffer is 3.12's


def _read_exactly(file: Any, window: memoryview, path: Path) -> None:
    done = 0
    while done < len(window):
        num_bytes = file.readinto(window[done:])
        if not num_bytes:
            raise ContractError(f"{path.name} ends too early")
        done += num_bytes


def write_fragments(
    path: Path,
    tensors: Sequence[tuple[str, torch.Tensor]],
    metadata: Mapping[str, str],
    on_progress: Callable[[int], None] = lambda _: None,
) -> FileEntry:
    """Write flat ``tensors`` to ``path``; the entry has its digest. on_progress: told of chunks."""
    digest = xxhash.xxh3_128()
    num_bytes = 0
    with path.open("wb", buffering=0) as file:
        for chunk in _chunks(tensors, metadata):
            digest.update(chunk)
            num_bytes += len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[file.write(rest) :]
            on_progress(len(chunk))
    return FileEntry(path=path.name, num_bytes=num_bytes, xxh3_128=digest.hexdigest())


def _chunks(tensors: Sequence[tuple[str, torch.Tensor]], metadata: Mapping[str, str]) -> Iterator[Any]:
    yield _header([(key, each.dtype, (each.numel(),)) for key, each in tensors], metadata)
    for _, tensor in tensors:
        yield from _pieces(tensor)


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


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """The tensors of ``path`` by key, and its metadata. Raises ContractError, and OSError where it cannot be read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, path.stat().st_size)))
        metadata = header.pop("__metadata__", {})
        return {key: _stored(path, 8 + length, each) for key, each in header.items()}, metadata
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"{path.name} is not a fragment file ({error})") from error


def _stored(path: Path, data_start: int, entry: Mapping[str, Any]) -> StoredTensor:
    stored = StoredTensor(
        path=path,
        dtype=_DTYPES[entry["dtype"]],
        shape=tuple(entry["shape"]),
        offset_bytes=data_start + entry["data_offsets"][0],
    )
    if stored.numel * stored.dtype.itemsize != entry["data_offsets"][1] - entry["data_offsets"][0]:
        raise ValueError("a tensor's bytes are not those of its shape")
    return stored
