"""``frenzy simulate``: figures, a report, and refusals in plain words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Said

from frenzy.settings import CHECKOUT

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
    assert after_a_while["settings"]["every start takes at least"] == "600 s"
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
    (tmp_path / "queues.yaml").write_text("queues: {default: {max_gpus_by_type: {tpu: 2}}}\n")
    said = frenzy("simulate", "--first", "6", "--queues", str(tmp_path / "queues.yaml"))
    assert (said.status, "queues.default.max_gpus_by_type" in said.err, "a100-40" in said.err) == (2, True, True)


def test_a_queue_file_is_played_on_a_cluster_without_one_of_its_types(frenzy: Command) -> None:
    queues = str(CHECKOUT / "include/queues/two-queues.yaml")
    asked = ("simulate", "--first", "6", "--cluster", "44", "--seed", "0", "--seed", "1", "--queues", queues)
    said = frenzy(*asked, "--json")
    assert said.status == 0
    told = [each for each in json.loads(said.out)["notes"] if "teams.vision.max_gpus_by_type: 'a100-80'" in each]
    assert len(told) == 1 and "limits nothing; the cluster has rtx-2080-ti" in told[0]


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_simulated(frenzy: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    said = frenzy(*FEW, "--output", str(tmp_path / "taken/below"))
    assert (said.status, "--output" in said.err, "jobs ended" in said.err) == (2, True, False)


def test_a_trace_without_a_job_is_refused_with_the_reasons_and_what_the_cluster_has(
    frenzy: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").write_text("submit_s,gpus,duration_s\n")
    said = frenzy("simulate", "--trace", str(tmp_path / "empty.csv"))
    assert (said.status, said.out, "the file has no job" in said.err) == (2, "", True)
    (tmp_path / "p.yaml").write_text(
        "profiles: {p: {memory: 1 GiB, plans: [{gpu_type: h100, gpus: 1, throughput: 1}]}}"
    )
    (tmp_path / "jobs.csv").write_text("submit_s,profile,work_samples\n0,p,10\n")
    said = frenzy("simulate", "--profiles", str(tmp_path / "p.yaml"), "--jobs", str(tmp_path / "jobs.csv"))
    assert said.status == 2
    # Whatever lines a table's cells are folded to beside a long path.
    assert {"no", "plan", "profile", "fits", "cluster", "a100-40,"} <= set(said.err.split())


def test_a_file_that_is_not_there_is_named_with_the_folder_it_was_looked_for_in(
    frenzy: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for option in ("--trace", "--cluster"):
        assert f"there is no file {tmp_path}/mine.yaml" in unwrapped(frenzy("simulate", option, "mine.yaml").err)


def unwrapped(text: str) -> str:
    """A table's cell whose lines were broken at spaces or in a long word."""
    return " ".join(text.split())


def test_what_is_asked_for_twice_is_simulated_once(frenzy: Command) -> None:
    twice = ("--policy", "fifo", "--policy", "fifo", "--seed", "3", "--seed", "3")
    document = json.loads(frenzy("simulate", "--first", "4", *twice, "--json").out)
    assert [each["num_scenarios"] for each in document["policies"]] == [1]


def test_gpu_types_of_a_trace_count_in_any_case_and_unknown_ones_are_told(frenzy: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("submit_s,gpus,duration_s,gpu_type\n0,1,600,A100-40\n10,1,600,Moon\n")
    (tmp_path / "cluster.yaml").write_text(
        "nodes: [{name: a, gpu_type: a100-40, gpus: 2}, {name: b, gpu_type: h100, gpus: 2}]"
    )
    files = ("--trace", str(tmp_path / "t.csv"), "--cluster", str(tmp_path / "cluster.yaml"))
    document = json.loads(frenzy("simulate", *files, "--policy", "fifo", "--json").out)
    assert any(note.endswith("they may use all it has: 1.") for note in document["notes"])


def test_pictures_without_matplotlib_are_refused_before_anything_is_simulated(
    frenzy: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = frenzy("simulate", "--first", "2", "--output", str(tmp_path / "report"))
    assert said.status == 2
    assert "frenzy-airflow[plots]" in said.err
    assert frenzy("simulate", "--first", "2", "--json").status == 0
