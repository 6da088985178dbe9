"""Documents of a data set: one per text file, jsonl line or parquet row, in a fixed order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from frenzy.core.values.job import DataSpec
from frenzy.trainer.outcome import BadInputError

if TYPE_CHECKING:
    from pyarrow import Schema

_FORMATS: Final = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSIONS: Final = (".gz", ".bz2", ".xz", ".zst")
_PIECE_CHARACTERS: Final = 8_000_000
# A compressed file of a few kB may hold lines of any length.
_MOST_LINE_CHARACTERS: Final = 16_000_000
_ROWS_AT_ONCE: Final = 64
_MOST_NAMES: Final = 20


def documents(data: DataSpec) -> Iterator[tuple[str, bool]]:
    """Pieces of text and whether a piece ends its document. Raises BadInputError.

    A long text file comes in pieces cut at line ends, so that memory stays bounded.
    """
    return ((text, ends) for text, ends, _ in pieces(data) if text or ends)


def pieces(data: DataSpec) -> Iterator[tuple[str, bool, int]]:
    """As ``documents``, and what each took to read, in characters; what was read in vain is a piece of no document."""
    for place in list_files(data):
        form = _format_of(place, data)
        if form == "text":
            yield from ((text, ends, len(text)) for text, ends in _text_pieces(place))
        elif form == "jsonl":
            yield from _jsonl_texts(place, data.text_column)
        else:
            yield from ((text or "", bool(text), len(text or "")) for text in _parquet_texts(place, data.text_column))


def list_files(data: DataSpec) -> list[str]:
    """The data files in name order; a folder stands for all files of known endings below it."""
    import fsspec

    try:
        fs, key = fsspec.core.url_to_fs(data.path)
        if any(letter in data.path for letter in "*?["):
            found = [each for each in fs.glob(key) if fs.isfile(each) and not PurePosixPath(each).name.startswith(".")]
        elif fs.isdir(key):
            found = [each for each in fs.find(key) if _is_data(each, data)]
        else:
            found = [key] if fs.exists(key) else []
    except (OSError, ValueError, ImportError) as error:
        raise BadInputError("data.path", data.path, f"it cannot be reached ({error})") from error
    if not found:
        allowed = "no data file is there; give a file, folder, glob or fsspec URL of text, jsonl or parquet"
        raise BadInputError("data.path", data.path, allowed)
    return [fs.unstrip_protocol(each) for each in sorted(found)]


def _is_data(name: str, data: DataSpec) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "_")) for part in path.parts[-1:])
    return not hidden and (data.format != "auto" or _ending(name) in _FORMATS)


def _ending(name: str) -> str:
    suffixes = [each.lower() for each in PurePosixPath(name).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _format_of(place: str, data: DataSpec) -> str:
    if data.format != "auto":
        return data.format
    form = _FORMATS.get(_ending(place))
    if form is None:
        allowed = f"auto knows the endings {', '.join(sorted(_FORMATS))}; set data.format for others"
        raise BadInputError("data.path", place, allowed)
    return form


def _text_pieces(place: str) -> Iterator[tuple[str, bool]]:
    import fsspec

    try:
        with fsspec.open(place, "rt", encoding="utf-8", compression="infer", newline="") as file:
            piece = _read_lines(file, place)
            while piece:
                following = _read_lines(file, place)
                yield piece, not following
                piece = following
    except UnicodeDecodeError as error:
        raise BadInputError("data.path", place, f"text must be UTF-8 ({error.reason} at byte {error.start})") from error


def _read_lines(file: Any, place: str) -> str:
    text: str = file.read(_PIECE_CHARACTERS)
    return text + _read_line(file, place) if len(text) == _PIECE_CHARACTERS else text


def _read_line(file: Any, place: str) -> str:
    line: str = file.readline(_MOST_LINE_CHARACTERS)
    if len(line) == _MOST_LINE_CHARACTERS:
        raise _too_long(place)
    return line


def _too_long(place: str) -> BadInputError:
    allowed = f"a line or text in it is longer than {_MOST_LINE_CHARACTERS // 1_000_000} million characters; split it"
    return BadInputError("data.path", place, allowed)


def _jsonl_texts(place: str, column: str) -> Iterator[tuple[str, bool, int]]:
    import fsspec

    with fsspec.open(place, "rt", encoding="utf-8", compression="infer") as file:
        lines = iter(lambda: _read_line(file, place), "")
        for number, line in enumerate(lines, start=1):
            holds = bool(line.strip())
            yield _jsonl_text(line, column, f"{place} line {number}") if holds else "", holds, len(line)


def _jsonl_text(line: str, column: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInputError("data.path", where, f"each line must be one JSON object ({error})") from error
    if not isinstance(row, dict) or column not in row:
        there = f"there are {_names(row)}" if isinstance(row, dict) else "it is no JSON object"
        raise BadInputError("data.text_column", column, f"{where} has no such column; {there}")
    if not isinstance(row[column], str):
        raise BadInputError("data.text_column", column, f"{where} holds a {type(row[column]).__name__} there, not text")
    text: str = row[column]
    return text


def _names(names: Iterable[str]) -> str:
    """Names of columns; what does not look like one may be a secret that a file of another kind holds."""
    usual = [each for each in sorted(names) if len(each) <= 40 and each.isprintable()]
    return ", ".join(usual[:_MOST_NAMES]) or "none"


def _parquet_texts(place: str, column: str) -> Iterator[str | None]:
    import fsspec
    import pyarrow as arrow
    from pyarrow import parquet

    with fsspec.open(place, "rb") as file:
        try:
            footer = parquet.read_metadata(file)
        except arrow.ArrowInvalid as error:
            raise BadInputError("data.path", place, f"it must be a parquet file ({error})") from error
        _check_column(footer.schema.to_arrow_schema(), column, place)
        # A value that stands in very many rows is in memory once.
        table = parquet.ParquetFile(file, metadata=footer, read_dictionary=[column], buffer_size=2**20)
        for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column], use_threads=False):
            for value in batch.column(0):
                text: str | None = value.as_py()
                if text is not None and len(text) > _MOST_LINE_CHARACTERS:
                    raise _too_long(place)
                yield text


def _check_column(schema: Schema, column: str, place: str) -> None:
    from pyarrow import types

    if column not in schema.names:
        raise BadInputError("data.text_column", column, f"{place} has no such column; there are {_names(schema.names)}")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise BadInputError("data.text_column", column, f"{place} holds {kind} there, not strings")
