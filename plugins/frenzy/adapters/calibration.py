"""The calibration that ships with the project, and calibrations from files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from frenzy.core import codec
from frenzy.core.memory_calibration import Calibration

DEFAULT_FILE: Final = Path(__file__).with_name("calibration.json")


@cache
def default_calibration() -> Calibration:
    """The checked-in calibration; ``python -m frenzy.trainer.calibrate`` generates it."""
    return load_calibration(DEFAULT_FILE)


def load_calibration(file: Path) -> Calibration:
    """The calibration in ``file``. Raises ContractError when it does not have that form."""
    return codec.loads(Calibration, file.read_text(encoding="utf-8"))
