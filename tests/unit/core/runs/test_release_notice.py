"""What is said of the releases beside a script, and of which nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frenzy.core.runs.release_notice import other_transformers, release_notice
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.values.workload import WorkloadSpec

OWN = {"transformers": "5.23.0", "deepspeed": "0.19.8", "torch": "2.13.0+cpu"}


def job(**workload: Any) -> TrainingJob:
    return TrainingJob(
        name="script",
        model=ModelSpec(config={"model_type": "llama"}),
        data=DataSpec(path=""),
        training=TrainingSpec(max_steps=1, global_batch_size=1),
        workload=WorkloadSpec(command=("python", "train.py"), **workload),
    )


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"transformers": "5.23.1", "deepspeed": "0.19.2", "torch": "2.4.1"},
        {"transformers": "6.0"},
        {"deepspeed": "0.15.4"},  # torch's optimizer trains: DeepSpeed has no buffers
    ],
)
def test_what_changes_no_prediction_is_not_told(found: dict[str, str]) -> None:
    assert other_transformers(job(), found, OWN) is None
    assert release_notice(job(), found, OWN, None) is None


def test_nothing_is_told_where_nothing_is_predicted() -> None:
    found = {"transformers": "4.44.2", "deepspeed": "0.15.4"}
    for each in (replace(job(honours=("zero",)), model=ModelSpec()), replace(job(), workload=None)):
        assert release_notice(each, found, OWN, None) is None


def test_packages_that_say_what_was_found_are_not_contradicted_by_its_last_number() -> None:
    assert other_transformers(job(packages={"transformers": "4.48.1"}), {"transformers": "4.48.3"}, OWN) is None
    assert other_transformers(job(packages={"transformers": "4.44.0"}), {"transformers": "4.48.1"}, OWN) == "4.48.1"


def test_a_refusal_is_told_with_its_remedy() -> None:
    refusal = Reason(code=ReasonCode.MODEL_NOT_SUPPORTED, detail="None are kept.", remedy="Name no model.")
    text = release_notice(job(packages={"transformers": "4.44.0"}), {"transformers": "4.40.1"}, OWN, refusal)
    assert text == (
        "The script runs transformers 4.40.1; workload.packages says 4.44.0. Plans stay as they are, since none can be "
        "made for it. None are kept. Name no model. Installed there: transformers 4.40.1."
    )


def test_deepspeed_is_told_of_a_script_whose_states_it_divides() -> None:
    text = release_notice(job(honours=("zero",)), {"deepspeed": "0.15.4"}, OWN, None)
    assert text is not None
    assert text.startswith("The script runs DeepSpeed 0.15.4; what its buffers take is predicted as of 0.19.8.")
