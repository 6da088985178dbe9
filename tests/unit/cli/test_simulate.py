"""``frenzy simulate``: figures, a report, and refusals in plain words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Said

Command = Callable[..., Said]
FEW = ("simulate", "--first", "12", "--policy", "frenzy-paper", "--policy", "backfill")


def test_table_has_a_column_for_each_policy(frenzy: Command) -> None:
    said = frenzy(*FEW)
    assert said.status == 0
    assert "frenzy-paper" in said.out
    assert "backfill" in said.out
    assert "average JCT" in said.out
    assert "12 of 12 jobs ended" in said.err


def test_json_and_the_folder_hold_every_figure(frenzy: Command, tmp_path: Path) -> None:
    said = frenzy(*FEW, "--seed", "1", "--seed", "2", "--output", str(tmp_path / "report"), "--json")
    document = json.loads(said.out)
    assert document == json.loads((tmp_path / "report/report.json").read_text())
    assert [each["num_scenarios"] for each in document["policies"]] == [2, 2]
    assert document["policies"][0]["figures"]["jct_mean_s"]["num_scenarios"] == 2
    assert (tmp_path / "report/report.html").is_file()


def test_what_goes_wrong_is_simulated_when_asked(frenzy: Command) -> None:
    wrong = ("--estimate-sigma", "1", "--misprediction", "1", "--failures", "5", "--repair", "0.5", "--load", "2")
    document = json.loads(frenzy(*FEW, *wrong, "--json").out)
    assert document["settings"]["failures"] == "each node every 5 h on average, for 0.5 h"
    assert any(each["restarts_mean"] > 0 for each in document["scenarios"])


def test_every_job_ends_later_by_at_least_what_a_start_takes(frenzy: Command) -> None:
    few = ("simulate", "--first", "4", "--policy", "backfill", "--rigid", "--json")
    at_once, after_a_while = (json.loads(frenzy(*few, *more).out) for more in ((), ("--start-overhead", "600")))
    assert after_a_while["settings"]["a first start takes"] == "600 s"
    means = [each["scenarios"][0]["jct_mean_s"] for each in (at_once, after_a_while)]
    assert means[1] >= means[0] + 599.9


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_start_that_takes_no_time_there_is_is_refused(seconds: str, frenzy: Command) -> None:
    said = frenzy("simulate", "--first", "2", "--start-overhead", seconds)
    assert said.status == 2
    assert "start" in said.err


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("--policy", "luck"), "frenzy-paper"),
        (("--trace", "nowhere"), "philly-160-1"),
        (("--cluster", "moon"), "6212"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(arguments: tuple[str, str], allowed: str, frenzy: Command) -> None:
    said = frenzy("simulate", *arguments)
    assert said.status == 2
    assert arguments[1] in said.err
    assert allowed in said.err.replace("\n", " ")


def test_report_does_not_replace_a_file(frenzy: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    said = frenzy(*FEW, "--output", str(tmp_path / "taken"))
    assert (said.status, (tmp_path / "taken").read_text()) == (2, "mine")


def test_queues_of_a_file_are_simulated_and_policies_without_any_are_named(frenzy: Command, tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text("queues: {default: {weight: 2}, other: }\n")
    said = frenzy(
        "simulate",
        "--first",
        "6",
        "--policy",
        "has",
        "--policy",
        "fifo",
        "--queues",
        str(tmp_path / "queues.yaml"),
        "--output",
        str(tmp_path / "report"),
    )
    assert said.status == 0
    assert "Shares and quotas mean nothing to fifo." in (tmp_path / "report/report.html").read_text()


def test_a_queue_file_that_is_refused_names_the_field(frenzy: Command, tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text("queues: {default: {weight: -2}}\n")
    said = frenzy("simulate", "--first", "6", "--queues", str(tmp_path / "queues.yaml"))
    assert (said.status, "queues.default.weight" in said.err) == (2, True)
