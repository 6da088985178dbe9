"""Fields of a config as JSON has them become the library's own object."""

from __future__ import annotations

import json
import math

import pytest

from frenzy.trainer.model.library_configs import config_of


@pytest.mark.parametrize("family", ["mamba2", "falcon_h1"])
def test_a_bound_that_json_cannot_hold_comes_back_as_it_was(family: str) -> None:
    fields = json.loads(config_of({"model_type": family}).to_json_string(use_diff=False))
    assert fields["time_step_limit"][1] == {"__float__": "Infinity"}
    assert config_of(fields).time_step_limit[1] == math.inf


def test_parts_of_a_config_are_read_alike() -> None:
    config = config_of({"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert config.rope_parameters["rope_theta"] == 5e5
