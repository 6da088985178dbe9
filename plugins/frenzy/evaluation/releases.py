"""Which release of transformers a file's runs used: as the file, or what is published beside it, records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.evaluation.published import Cells, UnknownRow

# fms-acceleration publishes a list of requirements with each table, in scripts/benchmarks/refs: requirements.txt
# for a100_80gb.csv, requirements_liger.txt for a100_80gb_liger.csv, requirements_granite.txt for the third.
_RECORDED_BY_NAME: Final = {"a100_80gb": "4.48.1", "a100_80gb_liger": "4.45.2", "a100_80gb_granite": "4.45.2"}
_RECORDED_FOR_LIGER: Final = "4.45.2"
_ASSUMED: Final = "4.48"
_COLUMN: Final = "transformers"


@dataclass(frozen=True, slots=True)
class RecordedRelease:
    """A release of transformers, and who says so."""

    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version} ({self.source})"

    def calibration(self, calibrations: Mapping[str, Calibration]) -> Calibration:
        """The coefficients of the newest kept release not above this one. Raises UnknownRow where there is none."""
        kept = {_parts(name.removeprefix("transformers-")): each for name, each in calibrations.items()}
        if self == PRODUCT:
            return kept[max(kept)]
        older = [each for each in kept if each <= _parts(self.version)]
        if not older:
            raise UnknownRow(f"transformers {self.version}: no coefficients of it are kept")
        return kept[max(older)]


PRODUCT: Final = RecordedRelease("the product's", "not recorded, assumed")


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


def _parts(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        raise UnknownRow(f"transformers {version!r} is not a release such as 4.48.1")
    return int(found[1]), int(found[2])
