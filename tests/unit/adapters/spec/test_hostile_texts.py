"""No text that a person can send kills a reader, takes it long, or ends in a traceback."""

from __future__ import annotations

from random import Random

import pytest
from tests.fuzz.hostile import YAML_TEXTS
from tests.fuzz.targets import READERS, read, texts_of

from frenzy.adapters.spec.yaml_core import FILE, SPEC, load_json, load_yaml
from frenzy.core.values.errors import SpecError

SHARE = 150
REFUSED_IN_YAML = set(YAML_TEXTS) - {"unknown keys", "long text", "long unknown key"}


@pytest.mark.parametrize("target", READERS)
def test_no_reader_fails_on_known_attacks_or_mutated_files(target: str) -> None:
    assert [each for text in texts_of(target, SHARE, Random(7)) if (each := read(target, text))] == []


@pytest.mark.parametrize("name", sorted(REFUSED_IN_YAML))
def test_each_known_attack_is_refused_before_anything_is_made_of_it(name: str) -> None:
    for limits in (SPEC, FILE):
        if (name, limits) not in (("wide", FILE), ("billion laughs", FILE)):
            with pytest.raises(SpecError):
                load_yaml(YAML_TEXTS[name], limits)


def test_an_alias_counts_as_often_as_it_stands_for_a_value() -> None:
    block = "a: &a [" + "1, " * 999 + "1]\n"
    assert load_yaml(block + "b: [" + "*a, " * 7 + "*a]")["b"][7][999] == 1
    with pytest.raises(SpecError, match="at most 10000 values"):
        load_yaml(block + "b: [" + "*a, " * 9 + "*a]")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": "\\ud800"}', '{"a": 1e999}', "9" * 5_000])
def test_json_is_read_under_the_same_limits(text: str) -> None:
    with pytest.raises(SpecError):
        load_json(text)


@pytest.mark.parametrize("depth", [60, 100_000])
def test_json_that_is_nested_too_deep_is_told_the_limit(depth: int) -> None:
    with pytest.raises(SpecError, match="nested at most 50 deep"):
        load_json("[" * depth + "]" * depth)


def test_what_python_writes_for_no_number_is_read_as_null() -> None:
    assert load_json('{"loss": NaN, "least": -Infinity}') == {"loss": None, "least": None}
