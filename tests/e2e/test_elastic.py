"""Three jobs on real workers: a long one makes room for a short one, then grows back; no step is lost.

It has an Airflow of its own, where seconds are the least time between two moves, not a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.e2e.walker import Walker, job_text, write_cluster, write_corpus

from frenzy.adapters.api_client import ApiAddress
from frenzy.cli.airflow_env import SERVICE_USER
from frenzy.cli.connection import Api
from frenzy.cli.demo_elastic import Specs, play
from frenzy.cli.demo_elastic_promises import Story, judge
from frenzy.cli.stack import Stack
from frenzy.core.errors import ReasonCode


@pytest.fixture(scope="module")
def elastic_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    files = tmp_path_factory.mktemp("elastic-cluster")
    env = {"FRENZY_CLUSTER": str(write_cluster(files)), "FRENZY_MIN_RUN_S": "3", "FRENZY_RESTART_S": "8"}
    with Stack.running(tmp_path_factory.mktemp("elastic-stack"), env=env) as running:
        yield running


@pytest.fixture(scope="module")
def api(elastic_stack: Stack) -> Iterator[Api]:
    address = ApiAddress(
        base_url=elastic_stack.base_url, login=SERVICE_USER, password=elastic_stack.password(SERVICE_USER)
    )
    with Api(address, patience_s=60.0) as api:
        yield api


def on_slow_gpus(max_gpus: int | None = None) -> Mapping[str, Any]:
    """The type with four GPUs, each slow enough that steps are what takes the time."""
    return {"gpu_types": ["t-slow"], "max_gpus": max_gpus}


@pytest.fixture(scope="module")
def story(elastic_stack: Stack, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Story:
    corpus = write_corpus(tmp_path_factory.mktemp("elastic-corpus"))
    training = {"global_batch_size": 8}
    specs = Specs(
        steady=job_text(
            "steady", corpus, training={**training, "max_steps": 120}, constraints=on_slow_gpus(2), elastic="off"
        ),
        long=job_text("long", corpus, training={**training, "max_steps": 260}, constraints=on_slow_gpus()),
        short=job_text("short", corpus, training={**training, "max_steps": 20}, constraints=on_slow_gpus(1)),
    )
    return play(api, specs, print)


def test_every_promise_of_elasticity_is_kept(story: Story) -> None:
    broken = [f"{each.name}: {each.evidence}" for each in judge(story) if not each.kept]
    assert broken == [], [(a.attempt, a.plan.plan_id, a.outcome) for a in story.long.attempts]


def test_the_short_job_was_told_what_it_waited_for(story: Story) -> None:
    assert story.short.run.reason is not None
    reasons = [event.text for event in story.long.events if ReasonCode.MOVED_TO_SHRINK in event.text]
    assert any("so that job short can start" in text for text in reasons)


def test_nothing_of_the_moved_job_is_left_behind(story: Story, elastic_stack: Stack, tmp_path_factory: Any) -> None:
    walker = Walker(elastic_stack, write_corpus(tmp_path_factory.mktemp("corpus-again")))
    for view in story.runs:
        walker.no_workers_of(view.run.run_key)
    walker.http.close()
