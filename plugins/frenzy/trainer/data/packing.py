"""Documents to a file of token ids cut into equal sequences, and reading sequences back.

The file is read with plain reads, never mapped: the memory of a virtual GPU must hold tensors only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.job import DataSpec, TrainingJob
from frenzy.core.values.resource_plan import short_hash
from frenzy.trainer.data.documents import documents
from frenzy.trainer.data.tokenizer import is_byte_tokenizer
from frenzy.trainer.heartbeats import beat
from frenzy.trainer.outcome import BadInputError

_MAX_CHARACTERS_AT_ONCE: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedData:
    """Token ids on disk: ``num_train`` sequences to train on, then ``num_validation`` held out.

    file: raw little-endian ids of ``num_bytes_per_token`` bytes (2 or 4). num_tokens counts all.
    """

    file: str
    num_bytes_per_token: int
    sequence_length: int
    num_train: int
    num_validation: int
    num_tokens: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.num_bytes_per_token == 2 else "<u4")


class SequenceReader:
    """Reads sequences of a PackedData by index; one open file, no memory kept."""

    def __init__(self, packed: PackedData) -> None:
        self._packed = packed
        self._file = os.open(packed.file, os.O_RDONLY)

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids of shape (len(indices), sequence_length)."""
        length = self._packed.sequence_length
        found = np.empty((len(indices), length), dtype=np.int64)
        num_bytes = length * self._packed.num_bytes_per_token
        for row, index in enumerate(indices):
            raw = os.pread(self._file, num_bytes, int(index) * num_bytes)
            found[row] = np.frombuffer(raw, dtype=self._packed.dtype)
        return found

    def close(self) -> None:
        os.close(self._file)


def pack(job: TrainingJob, tokenizer: Any, folder: Path) -> PackedData:
    """The job's data in ``folder``, made on the first call and found again on later ones.

    Keyed by the specification, not by the source's content: a run goes on with the text it began
    with even if somebody edits the file. Raises BadInputError when there is too little text.
    """
    key = short_hash(codec.dumps(job.data), str(len(tokenizer)), job.model.tokenizer)
    index = folder / f"tokens-{key}.json"
    packed = _found(index, job.data)
    if packed is None:
        folder.mkdir(parents=True, exist_ok=True)
        packed = _write(job.data, tokenizer, folder / f"tokens-{key}.bin")
        temporary = index.with_name(f".{index.name}.{os.getpid()}.tmp")
        temporary.write_text(codec.dumps(packed))
        temporary.replace(index)
    return packed


def training_texts(data: DataSpec) -> Iterator[str]:
    """The text before the held-out part, by characters: what a tokenizer may learn from."""
    total = sum(len(text) for text, _ in documents(data))
    allowed = round(total * (1 - data.validation_fraction))
    for text, _ in documents(data):
        if allowed <= 0:
            return
        yield text[:allowed]
        allowed -= len(text)


def _found(index: Path, data: DataSpec) -> PackedData | None:
    """What was made before, if it is what would be made of so many tokens; the run's code may have written it."""
    try:
        packed = codec.loads(PackedData, index.read_text())
    except (OSError, ContractError):
        return None
    # The folder may have been moved or mounted elsewhere since.
    beside = index.with_suffix(".bin")
    whole = packed.num_tokens * packed.num_bytes_per_token
    if not beside.exists() or beside.stat().st_size != whole or packed.num_bytes_per_token not in (2, 4):
        return None
    shares = split(packed.num_tokens // data.sequence_length, data.validation_fraction)
    if packed.sequence_length != data.sequence_length or (packed.num_train, packed.num_validation) != shares:
        return None
    return PackedData(**{**codec.encode(packed), "file": str(beside)})


def _write(data: DataSpec, tokenizer: Any, file: Path) -> PackedData:
    largest_id = max(len(tokenizer) - 1, tokenizer.eos_token_id)
    num_bytes = 2 if largest_id < 2**16 else 4
    dtype = np.dtype("<u2" if num_bytes == 2 else "<u4")
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    num_tokens = 0
    with temporary.open("wb") as out:
        for ids in _token_runs(documents(data), tokenizer):
            out.write(ids.astype(dtype).tobytes())
            num_tokens += len(ids)
            beat("tokenising: tokens written", num_tokens)
    temporary.replace(file)
    num_train, num_validation = split(num_tokens // data.sequence_length, data.validation_fraction)
    if num_train < 1:
        allowed = f"its {num_tokens} tokens do not fill one training sequence of {data.sequence_length}"
        raise BadInputError("data.path", data.path, f"{allowed}; give more text or a smaller data.sequence_length")
    return PackedData(
        file=str(file),
        num_bytes_per_token=num_bytes,
        sequence_length=data.sequence_length,
        num_train=num_train,
        num_validation=num_validation,
        num_tokens=num_tokens,
    )


def split(num_sequences: int, validation_fraction: float) -> tuple[int, int]:
    """Sequences to train on and to hold out: at least one is held out if there are two to share."""
    if validation_fraction == 0 or num_sequences < 2:
        return num_sequences, 0
    num_validation = max(1, int(num_sequences * validation_fraction))
    return num_sequences - num_validation, num_validation


def _token_runs(pieces: Iterable[tuple[str, bool]], tokenizer: Any) -> Iterator[NDArray[np.uint32]]:
    end = np.array([tokenizer.eos_token_id], dtype=np.uint32)
    plain_bytes = is_byte_tokenizer(tokenizer)
    for text, ends in pieces:
        for start in range(0, len(text), _MAX_CHARACTERS_AT_ONCE):
            yield _encode(text[start : start + _MAX_CHARACTERS_AT_ONCE], tokenizer, plain_bytes=plain_bytes)
        if ends:
            yield end


def _encode(text: str, tokenizer: Any, *, plain_bytes: bool) -> NDArray[np.uint32]:
    if plain_bytes:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)
    # The backend is called directly: the wrapper warns about texts longer than a model's window.
    return np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.uint32)
