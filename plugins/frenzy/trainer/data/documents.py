"""Documents of a data set: one per text file, jsonl line, parquet or Arrow row, in a fixed order.

A ``Part`` is what is read in one go: a file, or a range of one that can be entered in the middle.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from frenzy.core.values.job import DataSpec
from frenzy.trainer.data.conversations import conversation_line
from frenzy.trainer.outcome import BadInputError, DataNotHereError

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

_FORMATS: Final = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
}
# What ``datasets.Dataset.save_to_disk`` writes beside its files: their names in order, and the names of splits.
_STATE_FILE: Final = "state.json"
_SPLITS_FILE: Final = "dataset_dict.json"
_TRAINING_SPLIT: Final = "train"
_COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zst")
_PIECE_CHARACTERS: Final = 8_000_000
# A compressed file of a few kB may hold lines of any length.
MOST_CHARACTERS: Final = 16_000_000
_ROWS_AT_ONCE: Final = 64
_MOST_NAMES: Final = 20
_READ_BYTES: Final = 2**20
_ARROW_MAGIC: Final = b"ARROW1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file of a data set, or a range of one: [start, stop) in bytes for jsonl, in row groups for parquet.

    stop None: to its end. A line belongs to the range that it begins in.
    """

    place: str
    form: str
    start: int = 0
    stop: int | None = None


def documents(data: DataSpec) -> Iterator[tuple[str, bool]]:
    """Pieces of text and whether a piece ends its document. Raises BadInputError.

    A long text file comes in pieces cut at line ends, so that memory stays bounded.
    """
    return ((text, ends) for text, ends, _ in pieces(data) if text or ends)


def pieces(data: DataSpec) -> Iterator[tuple[str, bool, int]]:
    """As ``documents``, and what each took to read, in characters; what was read in vain is a piece of no document."""
    for place in list_files(data):
        yield from read_part(Part(place=place, form=format_of(place, data)), data)


def read_part(part: Part, data: DataSpec) -> Iterator[tuple[str, bool, int]]:
    """The pieces of ``part``, as in ``pieces``; a conversation is a line of JSON. Raises BadInputError."""
    if part.form == "text" and data.messages is not None:
        raise BadInputError("data.messages", part.place, "conversations are in jsonl, parquet or arrow, not in text")
    if part.form == "text":
        yield from ((text, ends, len(text)) for text, ends in _text_pieces(part.place))
    elif part.form == "jsonl":
        yield from _jsonl_texts(part, data)
    else:
        rows = _parquet_texts(part, data) if part.form == "parquet" else _arrow_texts(part.place, data)
        yield from ((text or "", bool(text), len(text or "")) for text in rows)


def column_of(data: DataSpec) -> str:
    """The column that is read."""
    return data.text_column if data.messages is None else data.messages.column


def is_compressed(place: str) -> bool:
    """Whether the file can only be read from its start."""
    return PurePosixPath(place).suffix.lower() in _COMPRESSIONS


def list_files(data: DataSpec) -> list[str]:
    """The data files in name order; a folder stands for all files of known endings below it."""
    import fsspec

    try:
        fs, key = fsspec.core.url_to_fs(data.path)
        if any(letter in data.path for letter in "*?["):
            found = [each for each in fs.glob(key) if fs.isfile(each) and not PurePosixPath(each).name.startswith(".")]
        elif fs.isdir(key):
            found = _saved_files(fs, key, data.path) or [each for each in fs.find(key) if _is_data(each, data)]
        else:
            found = [key] if fs.exists(key) else []
    except (OSError, ValueError, ImportError) as error:
        raise DataNotHereError("data.path", data.path, f"it cannot be reached ({error})") from error
    if not found:
        allowed = "no data file is there; give a file, folder, glob or fsspec URL of text, jsonl, parquet or arrow"
        raise DataNotHereError("data.path", data.path, allowed)
    return [fs.unstrip_protocol(each) for each in sorted(found)]


def _saved_files(fs: Any, key: str, place: str) -> list[str]:
    """The files of a data set that ``datasets`` saved in the folder; of several splits the one to train on."""
    if fs.exists(f"{key}/{_SPLITS_FILE}"):
        splits = json.loads(fs.cat_file(f"{key}/{_SPLITS_FILE}"))["splits"]
        if _TRAINING_SPLIT not in splits:
            allowed = f"it has the splits {_names(map(str, splits))}; name the folder of one of them"
            raise BadInputError("data.path", place, allowed)
        key = f"{key}/{_TRAINING_SPLIT}"
    if not fs.exists(f"{key}/{_STATE_FILE}"):
        return []
    named = [str(each["filename"]) for each in json.loads(fs.cat_file(f"{key}/{_STATE_FILE}"))["_data_files"]]
    if any(PurePosixPath(each).name != each for each in named):
        raise BadInputError("data.path", place, f"{_STATE_FILE} names files that are not in its folder")
    return [f"{key}/{each}" for each in named]


def _is_data(name: str, data: DataSpec) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "_")) for part in path.parts[-1:])
    return not hidden and (data.format != "auto" or _ending(name) in _FORMATS)


def _ending(name: str) -> str:
    suffixes = [each.lower() for each in PurePosixPath(name).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def format_of(place: str, data: DataSpec) -> str:
    """text, jsonl, parquet or arrow. Raises BadInputError for an ending that says none of them."""
    if data.format != "auto":
        return data.format
    form = _FORMATS.get(_ending(place))
    if form is None:
        allowed = f"auto knows the endings {', '.join(sorted(_FORMATS))}; set data.format for others"
        raise BadInputError("data.path", place, allowed)
    return form


def _text_pieces(place: str) -> Iterator[tuple[str, bool]]:
    try:
        with _opened_text(place, newline="") as file:
            piece = _read_lines(file, place)
            while piece:
                following = _read_lines(file, place)
                yield piece, not following
                piece = following
    except UnicodeDecodeError as error:
        raise _no_text(place, error) from error


def _opened_text(place: str, *, newline: str | None = None) -> Any:
    import fsspec

    _learn_zstandard()
    return fsspec.open(place, "rt", encoding="utf-8", compression="infer", newline=newline)


def _learn_zstandard() -> None:
    """Let fsspec read ``.zst`` by pyarrow, where no library of that name does."""
    from fsspec import compression

    if "zstd" in compression.compr:
        return

    def opened(infile: Any, mode: str = "rb", **_: Any) -> Any:
        import pyarrow as arrow

        return arrow.CompressedInputStream(arrow.PythonFile(infile, mode=mode.rstrip("b")), "zstd")

    compression.register_compression("zstd", opened, "zst")


def _no_text(place: str, error: UnicodeDecodeError) -> BadInputError:
    return BadInputError("data.path", place, f"text must be UTF-8 ({error.reason} at byte {error.start})")


def _read_lines(file: Any, place: str) -> str:
    text: str = file.read(_PIECE_CHARACTERS)
    return text + _read_line(file, place) if len(text) == _PIECE_CHARACTERS else text


def _read_line(file: Any, place: str) -> str:
    line: str = file.readline(MOST_CHARACTERS)
    if len(line) == MOST_CHARACTERS:
        raise _too_long(place)
    return line


def _too_long(place: str) -> BadInputError:
    allowed = f"a line or text in it is longer than {MOST_CHARACTERS // 1_000_000} million characters; split it"
    return BadInputError("data.path", place, allowed)


def _jsonl_texts(part: Part, data: DataSpec) -> Iterator[tuple[str, bool, int]]:
    is_whole = part.start == 0 and part.stop is None
    where = part.place if not part.start else f"{part.place} after byte {part.start}"
    try:
        with _opened_text(part.place) if is_whole else closing(_opened_range(part)) as file:
            lines = iter(lambda: _read_line(file, part.place), "")
            for number, line in enumerate(lines, start=1):
                holds = bool(line.strip())
                yield _jsonl_text(line, data, f"{where} line {number}") if holds else "", holds, len(line)
    except UnicodeDecodeError as error:
        raise _no_text(part.place, error) from error


def _opened_range(part: Part) -> io.TextIOWrapper:
    import fsspec

    file = fsspec.open(part.place, "rb").open()
    start = _next_line(file, part.start)
    stop = None if part.stop is None else _next_line(file, part.stop)
    file.seek(start)
    return io.TextIOWrapper(io.BufferedReader(_Range(file, stop)), encoding="utf-8")


def _next_line(file: Any, offset: int) -> int:
    """Where the first line begins at ``offset`` or after it."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    while block := file.readline(_READ_BYTES):
        if block.endswith(b"\n"):
            break
    return int(file.tell())


class _Range(io.RawIOBase):
    """What is left of ``file`` up to the byte ``stop``."""

    def __init__(self, file: Any, stop: int | None) -> None:
        self._file, self._stop = file, stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = len(buffer) if self._stop is None else min(len(buffer), self._stop - self._file.tell())
        found = self._file.read(room) if room > 0 else b""
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


def _jsonl_text(line: str, data: DataSpec, where: str) -> str:
    column = column_of(data)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInputError("data.path", where, f"each line must be one JSON object ({error})") from error
    if not isinstance(row, dict) or column not in row:
        there = f"there are {_names(row)}" if isinstance(row, dict) else "it is no JSON object"
        raise BadInputError(_column_field(data), column, f"{where} has no such column; {there}")
    if data.messages is not None:
        return conversation_line(row[column], where, data.messages)
    if not isinstance(row[column], str):
        raise BadInputError("data.text_column", column, f"{where} holds a {type(row[column]).__name__} there, not text")
    text: str = row[column]
    try:
        text.encode()
    except UnicodeEncodeError as error:
        allowed = (
            f"its text has half of a character (a lone surrogate) at character {error.start}; mend or drop the line"
        )
        raise BadInputError("data.path", where, allowed) from error
    return text


def _column_field(data: DataSpec) -> str:
    return "data.text_column" if data.messages is None else "data.messages.column"


def _names(names: Iterable[str]) -> str:
    """Names of columns; what does not look like one may be a secret that a file of another kind holds."""
    usual = [each for each in sorted(names) if len(each) <= 40 and each.isprintable()]
    return ", ".join(usual[:_MOST_NAMES]) or "none"


def _parquet_texts(part: Part, data: DataSpec) -> Iterator[str | None]:
    import fsspec
    from pyarrow import parquet

    column = column_of(data)
    with fsspec.open(part.place, "rb") as file:
        footer = read_footer(file, part.place)
        _check_column(footer.schema.to_arrow_schema(), data, part.place)
        groups = range(part.start, footer.num_row_groups if part.stop is None else part.stop)
        # A value that stands in very many rows is in memory once.
        shared = [column] if data.messages is None else None
        table = parquet.ParquetFile(file, metadata=footer, read_dictionary=shared, buffer_size=_READ_BYTES)
        yield from _texts_of(
            table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column], row_groups=groups, use_threads=False),
            data,
            part.place,
            rows_before=sum(footer.row_group(each).num_rows for each in range(part.start)),
        )


def read_footer(file: Any, place: str) -> Any:
    """The metadata of the parquet file. Raises BadInputError."""
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        return parquet.read_metadata(file)
    except arrow.ArrowInvalid as error:
        raise BadInputError("data.path", place, f"it must be a parquet file ({error})") from error


def _arrow_texts(place: str, data: DataSpec) -> Iterator[str | None]:
    """Rows of a stream of record batches, as ``datasets`` keeps them, or of an Arrow file."""
    import fsspec
    import pyarrow as arrow
    from pyarrow import ipc

    with fsspec.open(place, "rb") as file:
        is_file = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        file.seek(0)
        try:
            reader = ipc.open_file(file) if is_file else ipc.open_stream(file)
        except arrow.ArrowInvalid as error:
            raise BadInputError("data.path", place, f"it must be an Arrow file ({error})") from error
        _check_column(reader.schema, data, place)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        yield from _texts_of(batches, data, place)


def _texts_of(
    batches: Iterable[RecordBatch], data: DataSpec, place: str, *, rows_before: int = 0
) -> Iterator[str | None]:
    number = rows_before
    for batch in batches:
        for value in batch.column(column_of(data)):
            number += 1
            text: str | None = value.as_py()
            if data.messages is not None:
                text = conversation_line(text, f"{place} row {number}", data.messages)
            if text is not None and len(text) > MOST_CHARACTERS:
                raise _too_long(place)
            yield text


def _check_column(schema: Schema, data: DataSpec, place: str) -> None:
    from pyarrow import types

    column = column_of(data)
    if column not in schema.names:
        allowed = f"{place} has no such column; there are {_names(schema.names)}"
        raise BadInputError(_column_field(data), column, allowed)
    if data.messages is not None:
        return  # each row is looked at
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise BadInputError("data.text_column", column, f"{place} holds {kind} there, not strings")
