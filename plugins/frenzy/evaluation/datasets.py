"""The data sets of published measurements: which reader takes which file, known by its columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.adapters.calibration_file import calibrated_releases, load_calibration
from frenzy.core.memory.calibration import Calibration
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.evaluation import read_fms, read_foundry, read_litgpt, read_nanotron, read_others
from frenzy.evaluation.published import Cells, PublishedRow

ReadRow = Callable[[Cells, int, Calibration], PublishedRow]


@dataclass(frozen=True, slots=True)
class DatasetFormat:
    """A kind of file: its name, the columns it is known by, its reader, and the release a row was run with."""

    name: str
    columns: tuple[str, ...]
    read_row: ReadRow
    release: Callable[[Cells], str]


def _late_2024(_: Cells) -> str:
    """What stands in for code that has no release of transformers, or does not record it."""
    return "transformers-4.48"


FORMATS: Final = (
    DatasetFormat("fms", read_fms.COLUMNS, read_fms.read_row, read_fms.release_of),
    DatasetFormat("llm-foundry", read_foundry.COLUMNS, read_foundry.read_row, _late_2024),
    DatasetFormat("nanotron", read_nanotron.COLUMNS, read_nanotron.read_row, _late_2024),
    DatasetFormat("litgpt-hub", read_litgpt.HUB_COLUMNS, read_litgpt.read_hub_row, _late_2024),
    DatasetFormat("litgpt-tables", read_litgpt.TABLE_COLUMNS, read_litgpt.read_table_row, _late_2024),
    DatasetFormat("torchtune", read_others.TORCHTUNE_COLUMNS, read_others.read_torchtune_row, _late_2024),
    DatasetFormat("peft", read_others.PEFT_COLUMNS, read_others.read_peft_row, _late_2024),
    DatasetFormat("ms-swift", read_others.SWIFT_COLUMNS, read_others.read_swift_row, _late_2024),
    DatasetFormat("qwen", read_others.QWEN_COLUMNS, read_others.read_qwen_row, _late_2024),
)


def release_calibrations() -> Mapping[str, Calibration]:
    """The coefficients of every release that published runs used, by its name."""
    return {name: load_calibration(name) for name in calibrated_releases()}


def read_dataset(file: Path, calibrations: Mapping[str, Calibration]) -> tuple[PublishedRow, ...]:
    """All rows of ``file``, in its order, with the coefficients of the release each was run with.

    Raises PermanentError when the file is missing or has the columns of no known data set.
    """
    if not file.is_file():
        raise _refused(f"{file} is not a file.", "Name a CSV file.")
    columns, table = _table(file)
    known = next((each for each in FORMATS if set(each.columns) <= set(columns)), None)
    if known is None:
        names = "; ".join(f"{each.name}: {', '.join(each.columns)}" for each in FORMATS)
        raise _refused(f"The columns of {file} are those of no known data set.", f"Known columns: {names}.")
    if not table:
        raise _refused(f"{file} has no rows.", "Add rows below the line of columns.")
    return tuple(_row(known, cells, number, calibrations, file) for number, cells in enumerate(table, start=1))


def _table(file: Path) -> tuple[tuple[str, ...], list[Cells]]:
    """Columns and rows of a CSV file."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            rows: list[Cells] = list(reader)
            return tuple(reader.fieldnames or ()), rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refused(f"{file} is not a CSV file in UTF-8: {error}.", "Save it as CSV in UTF-8.") from error


def _row(
    known: DatasetFormat, cells: Cells, number: int, calibrations: Mapping[str, Calibration], file: Path
) -> PublishedRow:
    try:
        return known.read_row(cells, number, calibrations[known.release(cells)])
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(
            f"Row {number} of {file} cannot be read as {known.name}: {error!r}.", "Correct the row."
        ) from error


def _refused(detail: str, remedy: str) -> PermanentError:
    return PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy=remedy))
