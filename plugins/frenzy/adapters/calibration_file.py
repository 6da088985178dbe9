"""The calibrations that ship with the project: one for the product's releases, others for older ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.memory.model_trace import release_numbers
from frenzy.core.values import codec
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

DEFAULT_FILE: Final = Path(__file__).with_name("calibration.json")
_OF_TRANSFORMERS: Final = "transformers-"
OTHER_RELEASES: Final = Path(__file__).with_name("calibrations")
# With 4.46 the loss left ``forward``: logits stay as they are beside the loss's copies in fp32. 4.48 was traced for it.
_LOSS_LEFT_FORWARD: Final = (4, 46)
_TRACED_SINCE: Final = (4, 48)


@cache
def default_calibration() -> Calibration:
    """The checked-in calibration; ``python -m tools.calibration`` generates it."""
    return read_calibration(DEFAULT_FILE)


@cache
def family_calibration(family: str) -> Calibration:
    """The checked-in calibration with the coefficients of ``family`` alone, read in a fraction of the time.

    All of it where it has none of that family: what it covers is then told from it.
    """
    document = json.loads(DEFAULT_FILE.read_text(encoding="utf-8"))
    own = [each for each in document["activations"] if each["family"] == family]
    return codec.decode(Calibration, {**document, "activations": own}) if own else default_calibration()


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


def kept_calibration(
    asked: tuple[int, int], kept: Iterable[tuple[int, int]], load: Callable[[tuple[int, int]], Calibration]
) -> Calibration | None:
    """That of the newest of ``kept`` not above ``asked``, but 4.48's for 4.46 and 4.47; None where none is.

    In these two mistral and granite make logits fp32 in ``forward`` still: 4.48 is too careful for mistral, and what
    it does not have, such as granite, is taken from the older release.
    """
    older = max((each for each in kept if each <= asked), default=None)
    if older is None or not _LOSS_LEFT_FORWARD <= asked < _TRACED_SINCE:
        return None if older is None else load(older)
    return _with_missing_families(load(_TRACED_SINCE), load(older))


def _with_missing_families(found: Calibration, older: Calibration) -> Calibration:
    own = {each.family for each in found.activations}
    missing = (each for each in older.activations if each.family not in own)
    return replace(found, activations=(*found.activations, *missing))


@lru_cache(maxsize=16)
def calibration_of_release(release: str) -> Calibration:
    """The calibration for ``release`` of transformers, such as 4.48.1: the ``kept_calibration``.

    Raises PermanentError where none is kept: what newer ones keep would be too little.
    """
    asked = release_numbers(release)
    if asked >= release_numbers(default_calibration().versions["transformers"]):
        return default_calibration()
    kept = {release_numbers(name.removeprefix(_OF_TRANSFORMERS)): name for name in calibrated_releases()}
    found = kept_calibration(asked, kept, lambda each: load_calibration(kept[each]))
    if found is None:
        releases = ", ".join(name.removeprefix(_OF_TRANSFORMERS) for name in kept.values())
        raise PermanentError(
            Reason(
                code=ReasonCode.MODEL_NOT_SUPPORTED,
                detail=f"No coefficients of transformers {release} are kept; there are those of {releases}.",
                remedy="Leave model out of the specification: the script's memory is then measured, and learnt.",
            )
        )
    return found


def read_calibration(file: Path) -> Calibration:
    """The calibration in ``file``. Raises ContractError when it does not have that form."""
    return codec.loads(Calibration, file.read_text(encoding="utf-8"))
