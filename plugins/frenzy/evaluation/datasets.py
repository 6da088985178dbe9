"""The data sets of published measurements: which reader takes which file, known by its columns.

And which release of transformers a file's runs used: as the file, or what is published beside it, records.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final

from frenzy.adapters.calibration_file import (
    calibrated_releases,
    default_calibration,
    kept_calibration,
    load_calibration,
)
from frenzy.core.memory.calibration import Calibration
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.units import counted
from frenzy.evaluation import read_fms, read_own
from frenzy.evaluation.cells import release_of
from frenzy.evaluation.published import OWN_RUNS, Cells, PublishedRow, UnknownRow

# fms-acceleration publishes a list of requirements with each table, in scripts/benchmarks/refs: requirements.txt
# for a100_80gb.csv, requirements_liger.txt for a100_80gb_liger.csv, requirements_granite.txt for the third.
_RECORDED_BY_NAME: Final = {"a100_80gb": "4.48.1", "a100_80gb_liger": "4.45.2", "a100_80gb_granite": "4.45.2"}
_RECORDED_FOR_LIGER: Final = "4.45.2"
_ASSUMED: Final = "4.48"
_COLUMN: Final = "transformers"
# As alike are a slip and what was meant, of a file that has other columns, too, and of one that has not.
_SLIP: Final = 0.85
_MEANT: Final = 0.75
# What other tools call the same, and no likeness tells.
_SYNONYMS: Final = {
    "batch_size": "micro_batch",
    "per_device_train_batch_size": "micro_batch",
    "seq_len": "sequence_length",
    "max_seq_length": "sequence_length",
    "model_name_or_path": "model",
    "world_size": "num_gpus",
    "gradient_accumulation_steps": "accumulation",
    "gradient_checkpoint": "checkpointing",
    "gradient_checkpointing": "checkpointing",
    "dtype": "precision",
    "optim": "optimizer",
    "attn_implementation": "attention",
    "lora_r": "lora_rank",
    "target_modules": "lora_targets",
}

ReadRow = Callable[[Cells, int, Calibration], PublishedRow]


@dataclass(frozen=True, slots=True)
class RecordedRelease:
    """A release of transformers, and who says so."""

    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version} ({self.source})"

    def calibration(self, calibrations: Mapping[str, Calibration], *, oldest_stands_in: bool = False) -> Calibration:
        """The ``kept_calibration`` for this one.

        Where it is older still raises UnknownRow, or gives the oldest one if that stands in.
        """
        kept = {release_of(name.removeprefix("transformers-")): each for name, each in calibrations.items()}
        if self == PRODUCT:
            return kept[max(kept)]
        found = kept_calibration(release_of(self.version), kept, kept.__getitem__)
        if found is None and not oldest_stands_in:
            raise UnknownRow(f"transformers {self.version}: no coefficients of it are kept")
        return found or kept[min(kept)]


PRODUCT: Final = RecordedRelease("the product's", "not recorded, assumed")


@dataclass(frozen=True, slots=True)
class DatasetFormat:
    """A kind of file: its name, the columns it is known by, its reader, and the release its runs used.

    release: what is known where neither row nor file records it; None: ``release_of_file`` looks for it.
    refused: the row where it cannot be predicted; None: an unreadable row refuses the file. known: all columns that
    are read. has_others: whether a file of the kind has more than those.
    """

    name: str
    columns: tuple[str, ...]
    read_row: ReadRow
    release: RecordedRelease | None = RecordedRelease("4.48", "stands in for code of its own")
    refused: Callable[[Cells, int, str], PublishedRow] | None = None
    known: tuple[str, ...] = ()
    has_others: bool = True


FORMATS: Final = (
    DatasetFormat(
        OWN_RUNS,
        read_own.COLUMNS,
        read_own.read_row,
        PRODUCT,
        read_own.refused_row,
        known=read_own.KNOWN,
        has_others=False,
    ),
    DatasetFormat("fms", read_fms.COLUMNS, read_fms.read_row, None, read_fms.refused_row, known=read_fms.KNOWN),
)


def release_calibrations() -> Mapping[str, Calibration]:
    """The coefficients of every release that published runs used, and the product's own, by its name."""
    product = default_calibration()
    own = f"transformers-{product.versions['transformers']}"
    return {**{name: load_calibration(name) for name in calibrated_releases()}, own: product}


def read_dataset(
    file: Path, calibrations: Mapping[str, Calibration], formats: Sequence[DatasetFormat] = FORMATS
) -> tuple[PublishedRow, ...]:
    """All rows of ``file``, in its order, with the coefficients of the release each was run with.

    Raises PermanentError when the file is missing or has the columns of no known data set: then with those that may
    have been meant for required ones.
    """
    if not file.is_file():
        raise _refused(f"{file} is not a file.", "Name a CSV file.")
    columns, table = _table(file)
    known = _format_of(columns, formats)
    if known is None and len(columns) == 1 and (separator := re.search(r"[;\t]", columns[0])):
        written = "tabs" if separator[0] == "\t" else "semicolons"
        raise _refused(f"The cells of {file} are parted by {written}.", "Save it with commas between cells.")
    if known is None:
        names = "; ".join(f"{each.name}: {', '.join(each.columns)}" for each in formats)
        nearest = max(formats, key=lambda each: len(set(each.columns) & set(columns)))
        hints = [_with_hint(*each) for each in _unknown(columns, nearest, nearest.columns).items() if each[1]]
        unlike = f" Unknown: {', '.join(hints)}." if hints else ""
        raise _refused(f"The columns of {file} are those of no known data set.{unlike}", f"Known columns: {names}.")
    if not table:
        raise _refused(f"{file} has no rows.", "Add rows below the line of columns.")
    release = known.release or release_of_file(file, with_liger=any(read_fms.has_liger(each.cells) for each in table))
    read = partial(_row, known, file, release, calibrations)
    return tuple(replace(read(each, number), line=each.line) for number, each in enumerate(table, start=1))


def unread_columns(file: Path, formats: Sequence[DatasetFormat] = FORMATS) -> tuple[str, ...]:
    """The columns of ``file`` that nothing reads, each with the one that may have been meant.

    Of a kind of file that has others, too, only those that are nearly one that is missing. Raises as ``read_dataset``.
    """
    columns = _table(file)[0]
    of = _format_of(columns, formats)
    if of is None:
        return ()
    unknown = _unknown(columns, of, of.known)
    return tuple(_with_hint(*each) for each in unknown.items() if each[1] or not of.has_others)


def _format_of(columns: Sequence[str], formats: Sequence[DatasetFormat]) -> DatasetFormat | None:
    return next((each for each in formats if set(each.columns) <= set(columns)), None)


def _unknown(columns: Sequence[str], of: DatasetFormat, fields: Sequence[str]) -> dict[str, str | None]:
    """The columns that ``of`` does not know, each with the one of ``fields`` that is missing and may be meant."""
    missing = [each for each in fields if each not in columns]
    alike = _SLIP if of.has_others else _MEANT
    return {name: _meant(name.lower(), missing, alike) for name in columns if name and name not in of.known}


def _meant(name: str, missing: Sequence[str], alike: float) -> str | None:
    if _SYNONYMS.get(name) in missing:
        return _SYNONYMS[name]
    return next(iter(get_close_matches(name, missing, n=1, cutoff=alike)), None)


def _with_hint(name: str, meant: str | None) -> str:
    return f"{name} (did you mean {meant}?)" if meant else name


@dataclass(frozen=True, slots=True)
class _Record:
    """A row of a CSV file: the line on which it begins, from 1, its cells, and those beyond the columns."""

    line: int
    cells: Cells
    beyond: tuple[str, ...]


def _table(file: Path) -> tuple[tuple[str, ...], list[_Record]]:
    """Columns and rows of a CSV file; cells that a short row lacks are empty.

    Raises PermanentError for a file that is no CSV in UTF-8, or has two columns of one name.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            columns, *rows = [*_records(stream)] or [(1, ())]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refused(f"{file} is not a CSV file in UTF-8: {error}.", "Save it as CSV in UTF-8.") from error
    names = tuple(name.strip() for name in columns[1])
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise _refused(f"{file} has several columns of one name: {', '.join(twice)}.", "Leave one of each.")
    return names, [_record(names, *each) for each in rows]


def _records(stream: Iterable[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """First line and cells of all but empty lines."""
    reader, first = csv.reader(stream, strict=True), 1  # else a quote that nobody closes takes in the rest of the file
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield first, tuple(cells)
        first = reader.line_num + 1


def _record(names: Sequence[str], line: int, cells: Sequence[str]) -> _Record:
    found = {name: cell for name, cell in itertools.zip_longest(names, cells[: len(names)], fillvalue="") if name}
    return _Record(line, found, tuple(cells[len(names) :]))


def _row(
    known: DatasetFormat,
    file: Path,
    of_file: RecordedRelease,
    calibrations: Mapping[str, Calibration],
    record: _Record,
    number: int,
) -> PublishedRow:
    cells = record.cells
    release = release_of_row(cells, of_file)
    try:
        if any(record.beyond):
            raise UnknownRow(
                f"it has {counted(len(record.beyond), 'cell')} beyond the columns: quote a cell that has a comma"
            )
        stands_in = known.name == OWN_RUNS
        row = known.read_row(cells, number, release.calibration(calibrations, oldest_stands_in=stands_in))
    except (UnknownRow, PermanentError) as refusal:
        why = refusal.reason.detail if isinstance(refusal, PermanentError) else str(refusal)
        if known.refused is None:
            raise _unreadable(known, number, file, why) from refusal
        row = known.refused(cells, number, why)
    except KeyError as error:
        raise _unreadable(known, number, file, f"{error.args[0]!r} is no known column or value") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _unreadable(known, number, file, str(error)) from error
    if known.release is not None:
        return row
    return replace(row, dataset=known.name + file.stem.partition("80gb")[2].replace("_", "-"), release=str(release))


def _unreadable(known: DatasetFormat, number: int, file: Path, why: str) -> PermanentError:
    return _refused(f"Row {number} of {file} cannot be read as {known.name}: {why}.", "Correct the row.")


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))


def release_of_file(file: Path, *, with_liger: bool) -> RecordedRelease:
    """The release of a whole file: requirements beside it, its published name, or the assumed one.

    with_liger: the file has runs with Liger's loss; the one published table of them records its release.
    """
    stem = file.stem.removeprefix("fms_")
    for beside in (f"{file.stem}.requirements.txt", f"requirements{stem.partition('80gb')[2]}.txt"):
        found = _in_requirements(file.with_name(beside))
        if found:
            return RecordedRelease(found, beside)
    if stem in _RECORDED_BY_NAME:
        return RecordedRelease(_RECORDED_BY_NAME[stem], f"the requirements published with {stem}.csv")
    if with_liger:
        return RecordedRelease(_RECORDED_FOR_LIGER, "the requirements published with a100_80gb_liger.csv")
    return RecordedRelease(_ASSUMED, "not recorded, assumed")


def release_of_row(cells: Cells, of_file: RecordedRelease) -> RecordedRelease:
    """The row's own column ``transformers``, or the file's release."""
    own = (cells.get(_COLUMN) or "").strip()
    return RecordedRelease(own, "column transformers") if own else of_file


def _in_requirements(file: Path) -> str | None:
    if not file.is_file():
        return None
    found = re.search(r"^transformers==([\w.]+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return found[1] if found else None
