"""``frenzy logs`` shows any rank of any attempt, follows what is written, and finds a text in all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.in_memory.run_store import InMemoryRunStore
from tests.unit.cli.conftest import Said, World

from frenzy.app.cancellation import cancel
from frenzy.app.observe import attempt_launching
from frenzy.app.place import enqueue
from frenzy.app.settlement import end_attempt
from frenzy.core.runs.protocol import EndReport
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult

Command = Callable[..., Said]


def written(world: World, name: str, *texts: str, **job: Any) -> str:
    """A run on GPUs whose rank 0 wrote each of ``texts`` in an attempt of its own; all have ended."""
    run_key = world.registered(name, **job).run.run_key
    assert isinstance(world.services.runs, InMemoryRunStore)
    enqueue(world.services, run_key)
    attempt_launching(world.services, run_key, 1)
    world.services.runs.write_log(run_key, 1, texts[0])
    result = AttemptResult(exit_code=0, last_step=100, total_steps=100)
    ended = end_attempt(world.services, run_key, 1, EndReport(result=result)).attempts[0]
    for number, text in enumerate(texts[1:], start=2):
        world.services.runs.write_log(run_key, number, text)
        with world.services.ledger.transaction() as tx:
            tx.put_attempt(replace(ended, attempt=number))
    return run_key


def test_the_newest_attempt_is_shown_as_it_was_written(online: Command, world: World) -> None:
    run_key = written(world, "shown-log", "old\n", "first\nlast, without an end")
    assert online("logs", run_key).out == "first\nlast, without an end\n"
    assert online("logs", run_key, "--attempt", "1").out == "old\n"


def test_past_attempts_are_shown_in_their_order_with_their_numbers(online: Command, world: World) -> None:
    run_key = written(world, "moved-log", "a\n", "b\n")
    assert online("logs", run_key, "--all-attempts").out == "1.0  a\n2.0  b\n"


def test_all_ranks_are_shown_each_with_its_number(online: Command, world: World) -> None:
    run_key = written(world, "wide-log", "zero\n")
    with world.services.ledger.transaction() as tx:
        attempt = tx.attempts(run_key)[0]
        tx.put_attempt(replace(attempt, plan=replace(attempt.plan, num_gpus=2)))
    assert isinstance(world.services.runs, InMemoryRunStore)
    world.services.runs.write_log(run_key, 1, "one\n", rank=1)
    told = online("logs", run_key, "--all-ranks", "--json").out.splitlines()
    assert [json.loads(each) for each in told] == [
        {"attempt": 1, "rank": 0, "line": "zero"},
        {"attempt": 1, "rank": 1, "line": "one"},
    ]


def test_a_search_reads_all_of_a_long_log(online: Command, world: World) -> None:
    run_key = written(world, "long-log", "needle 1\n" + "hay\n" * 40_000 + "needle 2\n")
    assert online("logs", run_key, "--search", "needle").out == "needle 1\nneedle 2\n"
    assert "needle 1" not in online("logs", run_key).out, "without a search the end alone is shown"


@pytest.mark.parametrize("more", [(), ("--attempt", "1")])
def test_following_what_has_ended_shows_it_and_ends(more: tuple[str, ...], online: Command, world: World) -> None:
    run_key = written(world, f"followed-log-{len(more)}", "one\ntwo\n")
    said = online("logs", run_key, "--follow", *more)
    assert (said.status, said.out) == (0, "1.0  one\n1.0  two\n")


@pytest.mark.parametrize("more", [(), ("--follow",), ("--all-attempts",)])
def test_of_a_run_that_ended_before_it_had_workers_the_reason_and_its_tasks_are_named(
    more: tuple[str, ...], online: Command, world: World
) -> None:
    run = world.registered(f"never-launched-{len(more)}-{len(str(more))}").run
    cancel(world.services, run.run_key, Reason(code=ReasonCode.CANCELLED_BY_USER, detail="No longer wanted."))
    said = online("logs", run.run_key, *more)
    words = " ".join(said.err.split())
    assert said.status == 2
    assert "no worker of it was started. CANCELLED_BY_USER: No longer wanted." in words
    assert f"dags/{run.identity.dag_id}/runs/" in words


def training(world: World, name: str) -> str:
    """A run whose workers have made 20 steps."""
    run_key = world.registered(name).run.run_key
    enqueue(world.services, run_key)
    attempt_launching(world.services, run_key, 1)
    with world.services.ledger.transaction() as tx:
        (attempt,) = tx.attempts(run_key)
        tx.put_attempt(replace(attempt, last_step=20))
    return run_key


def test_a_cancellation_says_which_steps_are_lost_unless_the_workers_still_save_them(
    online: Command, world: World
) -> None:
    words = " ".join(online("cancel", training(world, "cancelled-early")).out.split())
    assert "Steps 1 to 20 are in no checkpoint yet" in words
    assert "a resume makes them again, unless the workers still save as they stop." in words


def test_a_cancellation_is_told_although_the_store_of_the_checkpoints_does_not_answer(
    online: Command, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> tuple[int, ...]:
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail="The store does not answer."))

    run_key = training(world, "cancelled-alone")
    monkeypatch.setattr(world.services.runs, "checkpoint_steps", away)
    said = online("cancel", run_key)
    assert (said.status, said.err) == (0, "")
    assert "its workers are being stopped." in said.out
    assert online("cancel", run_key, "--json").status == 0
