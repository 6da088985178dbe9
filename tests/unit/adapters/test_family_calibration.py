"""One family's coefficients read alone: the same as in the whole calibration, hence the same plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frenzy.adapters.calibration_file import default_calibration, family_calibration


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_a_familys_own_calibration_is_its_part_of_the_whole(family: str) -> None:
    whole, own = default_calibration(), family_calibration(family)

    assert own.activations == tuple(each for each in whole.activations if each.family == family)
    assert replace(own, activations=whole.activations) == whole


def test_a_family_without_coefficients_gets_the_whole_which_names_those_there_are() -> None:
    assert family_calibration("unheard-of") == default_calibration()
