"""Running jobs move for others on real workers: to make room and grow back, to swap, to give way, to leave a node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from tests.e2e.growing import growing
from tests.e2e.walker import ELASTIC_CLUSTER, RECONCILE, Walker, job_text, on_slow_gpus
from tests.scenarios import elastic, swap
from tests.scenarios.elastic import Story
from tests.scenarios.swap import SwapStory

from frenzy.adapters.api_client import ApiAddress
from frenzy.adapters.spec.job_spec import job_from_yaml
from frenzy.adapters.spec.spec_file import SpecFile
from frenzy.cli.commands.server import Api
from frenzy.cli.embedded.airflow_env import SERVICE_USER, STACK_MARK
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import Reason, ReasonCode

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def elastic_api(elastic_walker: Walker) -> Iterator[Api]:
    stack = elastic_walker.stack
    address = ApiAddress(base_url=stack.base_url, login=SERVICE_USER, password=stack.password(SERVICE_USER))
    with Api(address, patience_s=60.0) as api:
        yield api


def spec_file(name: str, corpus: Any, **sections: Any) -> SpecFile:
    text = job_text(name, corpus, **sections)
    return SpecFile(text=text, job=job_from_yaml(text))


@pytest.fixture(scope="module")
def story(elastic_walker: Walker, elastic_api: Api) -> Story:
    corpus = elastic_walker.corpus
    training = {"global_batch_size": 8}
    steady = {**training, "max_steps": 120}
    specs = (
        spec_file("steady", corpus, training=steady, constraints=on_slow_gpus(2), elastic="off"),
        spec_file("long", corpus, training={**training, "max_steps": 180}, constraints=on_slow_gpus()),
        spec_file("short", corpus, training={**training, "max_steps": 20}, constraints=on_slow_gpus(1)),
    )
    return elastic.play(elastic_api, specs, print)


def test_every_check_of_elasticity_passes(story: Story) -> None:
    broken = [f"{each.name}: {each.evidence}" for each in elastic.judge(story) if not each.passed]
    assert broken == [], [(a.attempt, a.plan.plan_id, a.outcome) for a in story.long.attempts]


def test_the_short_job_was_told_what_it_waited_for(story: Story) -> None:
    assert story.short.run.reason is not None
    reasons = [event.text for event in story.long.events if ReasonCode.MOVED_TO_SHRINK in event.text]
    assert any("so that job short can start" in text for text in reasons)


def test_nothing_of_the_moved_job_is_left_behind(story: Story, elastic_walker: Walker) -> None:
    for view in story.runs:
        elastic_walker.no_workers_of(view.run.run_key)


def one_of(*gpu_types: str) -> Mapping[str, Any]:
    return {"gpu_types": list(gpu_types), "max_gpus": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Jobs that want different GPUs, all at once to spare the time: the runs at their ends.

    waited: why the patient one waited meanwhile; drained: the node that was.
    """

    swap: SwapStory
    patient: RunView
    urgent: RunView
    leaving: RunView
    waited: Reason
    drained: str


@pytest.fixture(scope="module")
def scene(elastic_walker: Walker, elastic_api: Api, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    walker = elastic_walker
    patient = walker.start("patient", training={"max_steps": 120}, constraints=one_of("t-single"))
    leaving = walker.start("leaving", training={"max_steps": 120}, constraints=one_of("t-twin"))
    walker.wait_for_step(*patient, 3)
    urgent = walker.start("urgent", training={"max_steps": 8}, constraints=one_of("t-single"), priority=5)
    before = walker.wait_for_step(*leaving, 3)
    drained = before.attempts[0].placement.allocations[0].node
    drain(walker, drained)
    waited = walker.eventually("the patient job waits", lambda: reason_to_wait(walker, *patient))
    swapped = swap.play(
        elastic_api, swap_specs(walker), print, tmp_path_factory.mktemp("control"), control_environ(walker)
    )
    return Scene(
        swap=swapped,
        patient=walker.succeed(*patient),
        urgent=walker.succeed(*urgent),
        leaving=walker.succeed(*leaving),
        waited=waited,
        drained=drained,
    )


def drain(walker: Walker, name: str) -> None:
    """Mark the node in the cluster file; reconciliation reads it."""
    nodes = [{**each, "state": "draining"} if each["name"] == name else each for each in ELASTIC_CLUSTER["nodes"]]
    walker.stack.settings.cluster_file.write_text(yaml.safe_dump({**ELASTIC_CLUSTER, "nodes": nodes}), encoding="utf-8")
    walker.trigger(RECONCILE)


def reason_to_wait(walker: Walker, dag_id: str, run_id: str) -> Reason | None:
    view = walker.view(dag_id, run_id)
    preempted = view is not None and any(
        each.outcome is not None and each.outcome.code is ReasonCode.PREEMPTED for each in view.attempts
    )
    return view.queue_entry.hold if view is not None and preempted and view.queue_entry is not None else None


def swap_specs(walker: Walker) -> tuple[SpecFile, SpecFile]:
    """A job that takes the larger and faster GPU, and one whose memory grows until it fits that one only."""
    constraints = one_of("t-tight", "t-roomy")
    roomy = {"max_steps": 100, "global_batch_size": 8}
    growth = growing(100, max_steps=90, global_batch_size=1)
    return (
        # Of lower priority, so that it moves however slow this machine makes a restart.
        spec_file("roomy", walker.corpus, training=roomy, constraints=constraints, priority=-1),
        spec_file("growing", walker.corpus, training=growth, constraints=constraints),
    )


def control_environ(walker: Walker) -> Mapping[str, str]:
    return {**os.environ, STACK_MARK: str(walker.stack.settings.home)}


def stops(view: RunView) -> list[tuple[ReasonCode | None, int | None, int | None]]:
    """Of each attempt but the last: why it ended, at which step, and from which the next one went on."""
    return [
        (
            None if one.outcome is None else one.outcome.code,
            None if one.result is None else one.result.last_step,
            None if next_.result is None else next_.result.resumed_from_step,
        )
        for one, next_ in zip(view.attempts, view.attempts[1:], strict=False)
    ]


def test_every_check_of_a_swap_passes(scene: Scene) -> None:
    broken = [f"{each.name}: {each.evidence}" for each in swap.judge(scene.swap) if not each.passed]
    views = (scene.swap.roomy.view, scene.swap.growing.view)
    assert broken == [], [
        (view.run.job.name, each.plan.plan_id, each.outcome) for view in views for each in view.attempts
    ]


def test_a_job_of_lower_priority_gives_way_waits_with_a_reason_and_resumes(scene: Scene) -> None:
    ((code, stopped, resumed),) = stops(scene.patient)
    assert code is ReasonCode.PREEMPTED
    assert stopped == resumed
    assert scene.waited.code in (ReasonCode.WAITING_FOR_GPUS, ReasonCode.WAITING_BEHIND_HEAD)
    told = scene.patient.attempts[0].outcome
    assert told is not None
    assert "urgent" in told.sentence
    assert stops(scene.urgent) == []
    assert scene.patient.run.num_reschedules == 0


def test_a_job_leaves_a_drained_node_at_a_checkpoint(scene: Scene) -> None:
    ((code, stopped, resumed),) = stops(scene.leaving)
    assert code is ReasonCode.MOVED_TO_OTHER_GPUS
    assert stopped == resumed
    first, second = scene.leaving.attempts
    assert first.outcome is not None
    assert f"{scene.drained} is being drained" in first.outcome.sentence
    assert [each.node for each in second.placement.allocations] != [scene.drained]
    assert scene.leaving.run.num_reschedules == 0
