"""The data sets of published measurements: which reader takes which file, known by its columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from frenzy.adapters.calibration_file import calibrated_releases, default_calibration, load_calibration
from frenzy.core.memory.calibration import Calibration
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.evaluation import read_fms, read_own
from frenzy.evaluation.published import OWN_RUNS, Cells, PublishedRow, UnknownRow
from frenzy.evaluation.releases import PRODUCT, RecordedRelease, release_of_file, release_of_row

ReadRow = Callable[[Cells, int, Calibration], PublishedRow]


@dataclass(frozen=True, slots=True)
class DatasetFormat:
    """A kind of file: its name, the columns it is known by, its reader, and the release its runs used.

    release: what is known where neither row nor file records it; None: ``releases`` looks for it.
    refused: the row where it cannot be predicted; None: an unreadable row refuses the file.
    """

    name: str
    columns: tuple[str, ...]
    read_row: ReadRow
    release: RecordedRelease | None = RecordedRelease("4.48", "stands in for code of its own")
    refused: Callable[[Cells, int, str], PublishedRow] | None = None


FORMATS: Final = (
    DatasetFormat(OWN_RUNS, read_own.COLUMNS, read_own.read_row, PRODUCT, read_own.refused_row),
    DatasetFormat("fms", read_fms.COLUMNS, read_fms.read_row, None, read_fms.refused_row),
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

    Raises PermanentError when the file is missing or has the columns of no known data set.
    """
    if not file.is_file():
        raise _refused(f"{file} is not a file.", "Name a CSV file.")
    columns, table = _table(file)
    known = next((each for each in formats if set(each.columns) <= set(columns)), None)
    if known is None:
        names = "; ".join(f"{each.name}: {', '.join(each.columns)}" for each in formats)
        raise _refused(f"The columns of {file} are those of no known data set.", f"Known columns: {names}.")
    if not table:
        raise _refused(f"{file} has no rows.", "Add rows below the line of columns.")
    release = known.release or release_of_file(file, with_liger=any(map(read_fms.has_liger, table)))
    read = partial(_row, known, file, release, calibrations)
    return tuple(read(cells, number) for number, cells in enumerate(table, start=1))


def _table(file: Path) -> tuple[tuple[str, ...], list[Cells]]:
    """Columns and rows of a CSV file; cells that a short row lacks are empty, those beyond the columns dropped."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            rows: list[Cells] = [{name: cell or "" for name, cell in row.items() if name} for row in reader]
            return tuple(reader.fieldnames or ()), rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refused(f"{file} is not a CSV file in UTF-8: {error}.", "Save it as CSV in UTF-8.") from error


def _row(
    known: DatasetFormat,
    file: Path,
    of_file: RecordedRelease,
    calibrations: Mapping[str, Calibration],
    cells: Cells,
    number: int,
) -> PublishedRow:
    release = release_of_row(cells, of_file)
    try:
        row = known.read_row(cells, number, release.calibration(calibrations))
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
