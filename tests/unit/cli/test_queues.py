"""What the command line shows of queues and quotas, and how it refuses a queue that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Said, World

from frenzy.app.place import enqueue
from frenzy.core.values.queue_rules import NO_RULES, QueueRule, QueueRules, Quota, TeamRule

Command = Callable[..., Said]
RULES = QueueRules(
    queues=(QueueRule(name="default", weight=3.0), QueueRule(name="night")),
    teams=(TeamRule(name="*", quota=Quota(max_gpus=7)),),
)


@pytest.fixture
def shared(world: World) -> Iterator[World]:
    world.queues.replace(RULES)
    yield world
    world.queues.replace(NO_RULES)


def test_the_queue_is_shown_with_shares_and_quotas(shared: World, online: Command) -> None:
    enqueue(shared.services, shared.registered("sharing").run.run_key)
    said = online("queue")
    assert said.status == 0
    for words in (
        "Queues (holds and share",
        "night",
        "Quotas",
        "each other team",
        "at most 7",
        "team default",
        " of 7",
    ):
        assert words in said.out


def test_a_quota_for_a_type_that_is_not_there_says_so(shared: World, online: Command) -> None:
    quota = Quota(max_gpus_by_type=(("h100", 2),))
    shared.queues.replace(QueueRules(teams=(TeamRule(name="red", quota=quota),)))
    assert "h100, which the cluster does not have" in online("queue").out


def test_an_installation_without_queues_shows_none(world: World, online: Command) -> None:
    assert "Quotas" not in online("queue").out


def test_a_job_of_a_queue_that_is_not_there_is_refused_with_those_that_are(
    shared: World, online: Command, spec: Path
) -> None:
    spec.write_text(f"{spec.read_text()}\nqueue: nite\n")
    said = online("submit", str(spec), "--no-trigger")
    assert said.status == 2
    assert "one of default, night" in " ".join(said.err.split())
