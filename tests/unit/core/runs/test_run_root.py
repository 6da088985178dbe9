"""A pattern or a folder in a specification never stands for the files of other runs."""

from __future__ import annotations

import pytest

from frenzy.core.runs.run_root import reads_runs


@pytest.mark.parametrize(
    "place",
    [
        "s3://b/runs/????????????/attempt-*/spec.json",
        "s3://b/runs/.dat?/**",
        "s3://b/runs/[a-f]*/model/*.json",
        "s3://b/ru*/0123456789ab/attempt-1/spec.json",
        "s3://b/[r]uns/0123456789ab/attempt-1/spec.json",
        "s3://b//runs/./*/spec.json",
        "s3://b/x/../runs/*/spec.json",
        "s3://b/x/../runs",
        "s3://b/**/spec.json",
        "s3://b/r**",
        "s3://*/runs/0123456789ab/spec.json",
        "simplecache::s3://b/runs/*/spec.json",
        "s3a://b/runs/*",
        "s3://b/runs",
        "s3://b/",
    ],
)
def test_what_may_stand_for_several_runs_is_known(place: str) -> None:
    assert reads_runs(place, "s3://b/runs")


@pytest.mark.parametrize(
    "place",
    [
        "s3://b/data/*.jsonl",
        "s3://b/data/**",
        "s3://b/data",
        "s3://b/runs-2025/*/spec.json",
        "s3://other/runs/*",
        "s3://b/*",
        "s3://b/runs/0123456789ab/model",
        "s3://b/runs/0123456789ab/attempt-*/telemetry/*.jsonl",
        "/data/*.txt",
        "text",
    ],
)
def test_other_data_and_one_run_that_is_named_are_not_meant(place: str) -> None:
    assert not reads_runs(place, "s3://b/runs")


def test_a_folder_of_this_machine_is_known_with_and_without_its_scheme() -> None:
    for place in ("/home/f/runs/*/x.jsonl", "file:///home/f/runs/*/x.jsonl", "/home/f"):
        assert reads_runs(place, "/home/f/runs")
