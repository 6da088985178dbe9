"""``frenzy queue --snapshot``, and what ``frenzy simulate`` says of a queue that was captured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Said, World

from frenzy.app.place import enqueue
from frenzy.core.runs.views import QueueSnapshot
from frenzy.core.values.codec import loads

Command = Callable[..., Said]


@pytest.fixture
def busy(world: World) -> World:
    """Four runs for two nodes of two GPUs."""
    for index in range(4):
        view = world.registered(f"live{index}")
        enqueue(world.services, view.run.run_key)
    return world


@pytest.fixture
def taken(busy: World, online: Command, tmp_path: Path) -> Path:
    file = tmp_path / "queue.json"
    said = online("queue", "--snapshot", str(file))
    assert (said.status, said.out) == (0, "")
    return file


def test_snapshot_holds_what_a_pass_would_decide_on(taken: Path) -> None:
    assert json.loads(taken.read_text())["schema_version"] == 1
    found = loads(QueueSnapshot, taken.read_text())
    assert found.policy == "has"
    assert found.facts.running
    assert all(job.plans for job in found.facts.queued)
    keys = {job.run_key for job in found.facts.queued} | {job.run_key for job in found.facts.running}
    assert set(found.planning) == keys


def test_replay_gives_the_same_bytes_every_time(taken: Path, frenzy: Command, tmp_path: Path) -> None:
    first, second = (
        frenzy("simulate", "--snapshot", str(taken), "--output", str(tmp_path / name)) for name in ("one", "two")
    )
    assert (first.status, first.out) == (0, second.out)
    files = sorted(each.name for each in (tmp_path / "one").iterdir())
    assert "report.html" in files
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert frenzy("simulate", "--snapshot", str(taken), "--json").out == (tmp_path / "one/report.json").read_text()


def test_what_if_tells_who_ends_sooner(taken: Path, frenzy: Command, tmp_path: Path) -> None:
    asked = ("simulate", "--snapshot", str(taken), "--what-if", "add 8 LARGE")
    said = frenzy(*asked, "--output", str(tmp_path / "answer"))
    assert said.status == 0
    assert "end sooner" in said.out
    assert (tmp_path / "answer/report.html").is_file()
    told = json.loads(frenzy(*asked, "--json").out)
    assert told["after"]["queue_mean_s"] <= told["before"]["queue_mean_s"]
    assert len(told["jobs"]) == told["before"]["num_jobs"]


def test_what_if_says_how_many_jobs_end_and_averages_only_those_that_end_both_times(
    taken: Path, frenzy: Command
) -> None:
    said = frenzy("simulate", "--snapshot", str(taken), "--what-if", "remove 2 LARGE, remove 2 SMALL")
    lines = [line for line in said.out.splitlines() if line.startswith(("Jobs that end:", "Average", "No job"))]
    assert lines[0] == "No job ends both times, so there are no averages to compare."
    assert lines[1].startswith("Jobs that end: 4 of 4, the last after ")
    assert lines[1].endswith("; then none of 4.")


def test_live_queue_is_asked_directly(busy: World, online: Command) -> None:
    said = online("simulate", "--from-live", "--what-if", "drain a, add 4 L40S", "--json")
    assert said.status == 0
    assert json.loads(said.out)["policy"] == "has"


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("--what-if", "add 4 L40S"), "--from-live"),
        (("--snapshot", "nowhere.json"), "frenzy queue --snapshot"),
        (("--snapshot", "nowhere.json", "--trace", "philly-160-1"), "only one of"),
        (("--jobs", "mine.csv"), "both or neither"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], allowed: str, frenzy: Command) -> None:
    said = frenzy("simulate", *arguments)
    assert said.status == 2
    assert allowed in " ".join(said.err.split())


def test_change_that_is_not_understood_is_refused(taken: Path, frenzy: Command) -> None:
    said = frenzy("simulate", "--snapshot", str(taken), "--what-if", "more of everything")
    assert said.status == 2
    assert "add N TYPE" in said.err


def test_snapshot_that_cannot_be_written_is_refused(busy: World, online: Command, tmp_path: Path) -> None:
    said = online("queue", "--snapshot", str(tmp_path / "no/such/folder.json"))
    assert said.status == 2
    assert "No such file" in said.err


def test_what_if_answers_for_every_policy_that_is_named(taken: Path, frenzy: Command, tmp_path: Path) -> None:
    asked = ("simulate", "--snapshot", str(taken), "--what-if", "add 8 LARGE", "--policy", "has", "--policy", "fifo")
    said = frenzy(*asked, "--output", str(tmp_path / "answer"))
    assert said.status == 0
    assert said.out.count("What if: add 8 LARGE") == 2
    assert [each["policy"] for each in json.loads(frenzy(*asked, "--json").out)] == ["has", "fifo"]
    document = json.loads((tmp_path / "answer/report.json").read_text())
    assert len(document["policies"]) == 4


def test_a_snapshot_is_played_under_the_queues_of_a_file(taken: Path, frenzy: Command, tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text("teams: {'*': {max_gpus: 1}}\n")
    free, bound = (
        json.loads(frenzy("simulate", "--snapshot", str(taken), "--json", *more).out)
        for more in ((), ("--queues", str(tmp_path / "queues.yaml")))
    )
    assert bound["scenarios"][0]["makespan_s"] > free["scenarios"][0]["makespan_s"]


def test_a_quota_for_a_type_that_neither_queue_nor_change_has_is_told_and_one_for_no_card_is_refused(
    taken: Path, frenzy: Command, tmp_path: Path
) -> None:
    (tmp_path / "queues.yaml").write_text("teams: {'*': {max_gpus_by_type: {t4: 1}}}\n")
    asked = ("simulate", "--snapshot", str(taken), "--queues", str(tmp_path / "queues.yaml"))
    for more, is_told in (((), True), (("--what-if", "add 8 LARGE"), True), (("--what-if", "add 1 t4"), False)):
        said = frenzy(*asked, *more)
        assert (said.status, "teams.*.max_gpus_by_type: 't4' limits nothing" in said.out) == (0, is_told)
    (tmp_path / "queues.yaml").write_text("teams: {'*': {max_gpus_by_type: {tpu: 1}}}\n")
    said = frenzy(*asked)
    assert (said.status, "teams.*.max_gpus_by_type" in said.err) == (2, True)


def test_options_that_make_another_workload_are_refused_beside_a_snapshot(taken: Path, frenzy: Command) -> None:
    disturbing = (("--failures", "5"), ("--start-overhead", "5"), ("--rigid",))
    for option in (("--cluster", "64"), ("--load", "2"), ("--seed", "3"), *disturbing):
        said = frenzy("simulate", "--snapshot", str(taken), *option)
        assert (said.status, said.out, option[0] in said.err) == (2, "", True)


def test_what_ran_before_the_snapshot_is_not_counted(taken: Path, frenzy: Command) -> None:
    document = json.loads(frenzy("simulate", "--snapshot", str(taken), "--json").out)
    (figures,) = document["scenarios"]
    assert 0 < figures["utilisation"] <= 1


def test_a_run_without_a_name_is_refused_in_words(busy: World, online: Command) -> None:
    said = online("explain", "")
    assert (said.status, "No training run or job is called ''" in said.err) == (2, True)
