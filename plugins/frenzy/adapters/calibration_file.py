"""The calibrations that ship with the project: one for the product's releases, others for older ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.values import codec

DEFAULT_FILE: Final = Path(__file__).with_name("calibration.json")
OTHER_RELEASES: Final = Path(__file__).with_name("calibrations")


@cache
def default_calibration() -> Calibration:
    """The checked-in calibration; ``python -m tools.calibration`` generates it."""
    return read_calibration(DEFAULT_FILE)


def calibrated_releases() -> tuple[str, ...]:
    """Names of the other releases that coefficients are kept for, such as ``transformers-4.48``."""
    return tuple(sorted(each.stem for each in OTHER_RELEASES.glob("*.json")))


@cache
def load_calibration(release: str) -> Calibration:
    """The calibration with the coefficients of activations of ``release``; all else is the product's.

    Raises KeyError naming the releases there are when ``release`` is none of them.
    """
    if release not in calibrated_releases():
        raise KeyError(f"no coefficients of {release!r}; there are {', '.join(calibrated_releases()) or 'none'}")
    found = read_calibration(OTHER_RELEASES / f"{release}.json")
    return replace(
        default_calibration(),
        activations=found.activations,
        versions=found.versions,
        measured_on=found.measured_on,
    )


def read_calibration(file: Path) -> Calibration:
    """The calibration in ``file``. Raises ContractError when it does not have that form."""
    return codec.loads(Calibration, file.read_text(encoding="utf-8"))
