"""The folder a simulation leaves: complete, readable without a network, and the same every time."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.unit.sim.sim_world import on_large, on_small, scenario, sim_job

from frenzy.core.scheduling import HasPolicy, PaperPolicy
from frenzy.sim.engine import simulate
from frenzy.sim.reports.figures import FIGURES, UNITS, unit_for
from frenzy.sim.reports.plots import span_shown_s, time_means
from frenzy.sim.reports.report import Report, write_report
from frenzy.sim.results import SimResult
from frenzy.sim.schedulers import ProductScheduler
from frenzy.sim.summaries import CPU_TIMES


@pytest.fixture(scope="module")
def results() -> list[SimResult]:
    found = []
    for name, seconds in (("first <trace>", 100.0), ("second", 300.0)):
        jobs = [sim_job(f"job {i}", on_small(1, seconds), on_large(1, seconds), submitted_s=i) for i in range(9)]
        found += [
            simulate(scenario(*jobs, name=name), ProductScheduler(policy)) for policy in (HasPolicy(), PaperPolicy())
        ]
    return found


def report(results: list[SimResult], *, with_cpu_times: bool = True) -> Report:
    return Report(title="A & B", settings={"seed": "1"}, results=results, with_cpu_times=with_cpu_times)


def test_folder_holds_tables_pictures_and_one_page(results: list[SimResult], tmp_path: Path) -> None:
    page = write_report(report(results), tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {
        "report.html",
        "report.json",
        "summary.csv",
        "jobs.csv",
        "jct-cdf.png",
        *(f"queue-{name}.png" for name in ("first-trace", "second")),
        *(f"gpus-{name}.png" for name in ("first-trace", "second")),
        *(f"gantt-{name}-{policy}.png" for name in ("first-trace", "second") for policy in ("has", "frenzy-paper")),
    }
    assert all(each.read_bytes().startswith(b"\x89PNG") for each in tmp_path.glob("*.png"))
    text = page.read_text()
    assert text.count("data:image/png;base64,") == len(list(tmp_path.glob("*.png")))
    assert "A &amp; B" in text
    assert "first &lt;trace&gt;" in text
    assert not re.search(r"<script|https?://|<link", text)


def test_tables_have_a_row_for_each_job_and_each_scenario(results: list[SimResult], tmp_path: Path) -> None:
    write_report(report(results), tmp_path)
    jobs = list(csv.DictReader((tmp_path / "jobs.csv").read_text().splitlines()))
    assert len(jobs) == 4 * 9
    assert float(jobs[0]["jct_s"]) == pytest.approx(float(jobs[0]["end_s"]) - float(jobs[0]["submitted_s"]))
    assert len(list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))) == 4
    document = json.loads((tmp_path / "report.json").read_text())
    assert [each["policy"] for each in document["policies"]] == ["has", "frenzy-paper"]
    assert document["policies"][0]["figures"]["jct_mean_s"]["num_scenarios"] == 2
    assert {(each["policy"], each["baseline"]) for each in document["jct_ratios"]} == {
        ("has", "frenzy-paper"),
        ("frenzy-paper", "has"),
    }


def test_without_cpu_times_the_same_simulation_leaves_the_same_bytes(results: list[SimResult], tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_report(report(results, with_cpu_times=False), tmp_path / name)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    for name in CPU_TIMES:
        assert name not in (tmp_path / "one" / "report.json").read_text()


@pytest.mark.parametrize(("seconds", "unit"), [(90, "s"), (1000, "min"), (90_000, "h"), (9e6, "days")])
def test_times_are_shown_in_a_unit_that_can_be_read(seconds: float, unit: str) -> None:
    assert unit_for(seconds).name == unit


def test_levels_are_averaged_between_edges() -> None:
    means = time_means(np.asarray([1.0, 3.0]), np.asarray([4.0, 0.0]), np.asarray([0.0, 2.0, 4.0]))
    assert means.tolist() == [2.0, 2.0]
    assert time_means(np.asarray([]), np.asarray([]), np.asarray([0.0, 1.0])).tolist() == [0.0]


def test_pictures_show_all_but_the_last_few_jobs_even_where_all_arrive_at_once() -> None:
    jobs = [sim_job(f"job {i}", on_small(1, 1000.0), submitted_s=float(i)) for i in range(20)]
    longest = sim_job("longest", on_large(1, 1e6), submitted_s=20.0)
    result = simulate(scenario(*jobs, longest), ProductScheduler(PaperPolicy()))
    ends_s = sorted(job.end_s for job in result.jobs if job.end_s is not None)
    assert ends_s[-3] <= span_shown_s([result]) < ends_s[-1] / 2


def test_the_mean_of_counts_is_not_rounded_to_none() -> None:
    figure = next(each for each in FIGURES if each.field == "num_ooms")
    assert [figure.text(value, UNITS[0]) for value in (0.0, 0.25, 3.0)] == ["0", "0.2", "3"]
