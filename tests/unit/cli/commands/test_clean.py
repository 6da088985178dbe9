"""``frenzy clean`` frees the space of old runs, says how much, and does nothing that was only asked about."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.cli.conftest import Said, World

from frenzy.app.cancellation import cancel
from frenzy.core.values.errors import Reason, ReasonCode

Command = Callable[..., Said]
DAY_S = 86400.0


def ended(world: World, name: str, days_ago: float) -> str:
    """A run with a log that ended so long ago."""
    run_key = world.registered(name).run.run_key
    assert isinstance(world.services.runs, InMemoryRunStore)
    world.services.runs.write_log(run_key, 1, "training\n" * 100)
    view = cancel(world.services, run_key, Reason(code=ReasonCode.CANCELLED_BY_USER))
    with world.services.ledger.transaction() as tx:
        tx.put_run(replace(view.run, updated_s=world.services.clock.now_s() - days_ago * DAY_S))
    return run_key


def test_old_runs_lose_their_files_and_others_keep_them(online: Command, world: World) -> None:
    old, new = ended(world, "old", 8), ended(world, "new", 6)
    said = online("clean", "--older-than", "7")
    assert said.status == 0, said.err
    assert "Removed 900 B of 1 run" in said.out and old in said.out and new not in said.out
    assert not world.services.runs.log_part(old, 1).text
    assert world.services.runs.log_part(new, 1).text
    assert "Nothing to remove" in online("clean", "--older-than", "7").out
    assert online("status", old).status == 0, "its history stays"


def test_a_dry_run_says_the_same_and_removes_nothing(online: Command, world: World) -> None:
    run_key = ended(world, "asked", 400)
    said = online("clean", "--older-than", "365", "--dry-run")
    assert "Would remove 900 B of 1 run" in said.out
    assert json.loads(online("clean", "--older-than", "365", "--dry-run", "--json").out) == [
        {"run_key": run_key, "num_bytes": 900}
    ]
    assert world.services.runs.log_part(run_key, 1).text


def test_a_run_that_may_not_be_cleaned_is_told_and_the_others_are_cleaned(online: Command, world: World) -> None:
    needed, other = ended(world, "needed", 4000), ended(world, "other", 4000)
    model = f"{world.services.runs.run_dir(needed)}/model"
    waiting = world.registered("uses")
    with world.services.ledger.transaction() as tx:
        job = waiting.run.job
        tx.put_run(replace(waiting.run, job=replace(job, checkpoint=replace(job.checkpoint, warm_start=model))))
    said = online("clean", "--older-than", "3650", "--models")
    assert said.status == 1
    assert "uses is to begin with its model" in said.err
    assert world.services.runs.log_part(needed, 1).text and not world.services.runs.log_part(other, 1).text


def test_named_runs_are_cleaned_whenever_they_ended_and_no_other(online: Command, world: World) -> None:
    named, other = ended(world, "named", 0), ended(world, "other", 400)
    said = online("clean", "named")
    assert said.status == 0, said.err
    assert "Removed 900 B of 1 run" in said.out
    assert world.services.runs.log_part(other, 1).text and not world.services.runs.log_part(named, 1).text
    assert "Nothing to remove of those runs" in online("clean", named).out
    going_on = world.registered("going-on").run.run_key
    assert "It has not ended" in online("clean", going_on).err


def test_runs_of_today_are_cleaned_on_request(online: Command, world: World) -> None:
    run_key = ended(world, "today", 0)
    assert "Removed" in online("clean", "--older-than", "0").out
    assert not world.services.runs.log_part(run_key, 1).text


@pytest.mark.parametrize("asked", [[], ["--older-than", "-1"], ["--older-than", "soon"]])
def test_what_names_no_runs_is_refused(online: Command, asked: list[str]) -> None:
    assert online("clean", *asked).status == 2
