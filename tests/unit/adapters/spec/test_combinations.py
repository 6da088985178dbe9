"""A sweep's runs: every combination once, under a name of its own that says its values, checked before any is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.adapters.spec.combinations import combinations, combined, settings_of
from frenzy.adapters.spec.job_spec import job_from_document, job_from_yaml, job_to_document
from frenzy.core.values.errors import SpecError
from frenzy.settings import CHECKOUT

RATE, RANK, STEPS = "training.learning_rate", "training.lora.rank", "training.max_steps"
SAMPLE = CHECKOUT / "include/jobs/sweep/tiny.yaml"


def document(**changes: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "model": {"config": {"model_type": "gpt2"}, "tokenizer": "byte"},
        "data": {"path": "words.txt"},
        "training": {"max_steps": 10},
        **changes,
    }


def names(settings: dict[str, Any], **changes: Any) -> list[str]:
    return [each.name for each in combined(document(**changes), settings)]


def test_every_combination_is_made_once_and_the_last_setting_changes_fastest() -> None:
    found = combined(document(), {RATE: [1e-4, 3e-4], RANK: [4, 16]})
    assert [tuple(each.values.values()) for each in found] == [(1e-4, 4), (1e-4, 16), (3e-4, 4), (3e-4, 16)]
    jobs = [job_from_document(each.document) for each in found]
    assert [(job.training.learning_rate, job.training.lora and job.training.lora.rank) for job in jobs] == [
        tuple(each.values.values()) for each in found
    ]
    assert {job.training.max_steps for job in jobs} == {10}, "what is not swept stays"


def test_a_name_is_the_jobs_and_the_values() -> None:
    assert names({RATE: [1e-4, 2.5e-3], RANK: [8]}) == ["small-lr1e-4-rank8", "small-lr2_5e-3-rank8"]
    assert names({"training.precision": ["bf16", "fp32"]}) == ["small-precisionbf16", "small-precisionfp32"]
    assert names({"model.config.n_layer": [1, 2]}) == ["small-layer1", "small-layer2"]


def test_a_number_makes_no_name_that_another_has() -> None:
    assert len(set(names({"evaluation.prompt": ["a", "a!", "a-2"]}))) == 3


def test_names_that_would_be_alike_are_numbered() -> None:
    assert names({"evaluation.prompt": ["a b", "a_b"]}) == ["small-prompta_b-1", "small-prompta_b-2"]


def test_a_name_shows_no_value_of_the_environment() -> None:
    assert names({"env.TOKEN": ["mine", "yours"]}) == ["small-token-1", "small-token-2"]


@given(
    st.from_regex(r"\A[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?\Z"),
    st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=8, unique=True),
    st.lists(st.text(max_size=80), min_size=1, max_size=3, unique=True),
)
def test_any_values_give_valid_names_that_differ(name: str, rates: list[float], texts: list[str]) -> None:
    plain = [each for each in texts if each.isprintable()] or ["x"]
    found = combined(document(name=name), {RATE: rates, "model.config.note": plain})
    assert len({each.name for each in found}) == len(found) == len(rates) * len(plain)
    assert [job_from_document(each.document).name for each in found] == [each.name for each in found]


def test_a_file_a_mapping_and_a_value_are_the_same_job(tmp_path: Path) -> None:
    job = job_from_yaml(SAMPLE.read_text(encoding="utf-8"))
    settings = {RATE: [1e-4, 3e-4]}
    expected = [job_from_document(each) for each in combinations(SAMPLE, settings)]
    assert [job_from_document(each) for each in combinations(str(SAMPLE), settings)] == expected
    assert [job_from_document(each) for each in combinations(job, settings)] == expected
    assert [job_from_document(each) for each in combinations(job_to_document(job), settings)] == expected


def test_all_that_is_wrong_with_any_combination_is_told_once() -> None:
    with pytest.raises(SpecError) as caught:
        combined(document(), {RATE: [1e-4, -1.0], "training.max_step": [5, 6], "objective": ["time", "speed"]})
    told = [str(each) for each in caught.value.violations]
    assert len(told) == len(set(told))
    assert any(each.startswith("training.learning_rate: -1.0 is refused") for each in told)
    assert any("did you mean training.max_steps?" in each for each in told)
    assert any(each.startswith("objective: 'speed'") for each in told)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "name at least one field"),
        ({RATE: []}, "at least one value"),
        ({RATE: "1e-4"}, "give a list"),
        ({RATE: [1e-4, 0.0001]}, "given twice"),
        ({"name": ["a", "b"]}, "named after the job"),
        ({"data.path.x": ["a"]}, "data.path is no section"),
        ({STEPS: list(range(1, 34))}, "33 combinations is refused; at most 32 runs"),
    ],
)
def test_settings_that_make_no_sweep_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        combined(document(), settings)


def test_more_runs_are_allowed_to_whoever_asks() -> None:
    assert len(combined(document(), {STEPS: list(range(1, 34))}, max_runs=33)) == 33


def test_settings_on_the_command_line_are_read_as_yaml() -> None:
    texts = [f"{RATE}=1e-4, 3e-4", "training.lora.target_modules=[a, b],[c]", "objective=time", "env.X='1,2'"]
    assert settings_of(texts) == {
        RATE: [1e-4, 3e-4],
        "training.lora.target_modules": [["a", "b"], ["c"]],
        "objective": ["time"],
        "env.X": ["1,2"],
    }


@pytest.mark.parametrize("texts", [["training.learning_rate"], ["=1"], [f"{RATE}=1", f"{RATE}=2"], [f"{RATE}=[1"]])
def test_settings_of_another_form_are_refused(texts: list[str]) -> None:
    with pytest.raises(SpecError):
        settings_of(texts)
