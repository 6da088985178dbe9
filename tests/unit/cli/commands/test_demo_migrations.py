"""Jobs of a scene are handed in one after the other and followed to their ends, against a server that is played."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.scenarios.evidence import good

from frenzy.adapters.spec.job_spec import job_from_yaml, shown_yaml
from frenzy.api.declaration import Call
from frenzy.cli.commands.server import Api
from frenzy.cli.demo_migrations import SCENES, play, specs_of
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView, SubmittedJob
from frenzy.core.values.job import TrainingJob


class PlayedServer:
    """Each look at a run finds it a few steps further; it ends with step 40."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.shown = ""
        self.last_steps: dict[str, int] = {}
        self.steps_when_submitted: list[tuple[int, ...]] = []

    def ask(self, call: Call[Any]) -> Any:
        if call.path.endswith("/jobs"):
            return self._submitted(job_from_yaml(json.loads(call.body or "")["yaml_text"]))
        if call.path.endswith("/details"):
            return {"doc_md": self.shown, "is_stale": False}
        if call.method == "POST":
            return {"dag_run_id": "r"}
        if "/runs/by-dag/" in call.path:
            return (self._looked_at(call.path.split("/")[-2]),)
        if call.path.endswith("/gpus"):
            return SimpleNamespace(types=[SimpleNamespace(num_gpus=4, num_free=3)])
        return {"state": "success"}

    def _submitted(self, job: TrainingJob) -> SubmittedJob:
        self.shown, name = shown_yaml(job), job.name
        self.steps_when_submitted.append(tuple(self.last_steps.values()))
        self.submitted.append(name)
        self.last_steps[name] = 0
        return SubmittedJob(name=name, dag_id=name, changed=True)

    def _looked_at(self, name: str) -> RunView:
        self.last_steps[name] = step = min(40, self.last_steps[name] + 5)
        view = good().view
        state = JobState.SUCCEEDED if step == 40 else JobState.RUNNING
        attempts = (replace(view.attempts[0], last_step=step),)
        return replace(
            view, run=replace(view.run, state=state, job=replace(view.run.job, name=name)), attempts=attempts
        )


@pytest.mark.parametrize("scene", SCENES)
def test_each_job_comes_when_the_one_before_has_done_its_steps(scene: str) -> None:
    server, told = PlayedServer(), list[str]()
    ending = play(cast(Api, server), scene, specs_of(scene), told.append, poll_s=0.0)
    assert [each.run.job.name for each in ending.views] == server.submitted
    assert ending.num_held_gpus == 1
    assert all(each.run.state is JobState.SUCCEEDED for each in ending.views)
    least = list(SCENES[scene].values())[:-1]
    assert all(done[-1] >= each for done, each in zip(server.steps_when_submitted[1:], least, strict=True))
    assert all(any(f"{name} is submitted" in line for line in told) for name in server.submitted)


def test_what_happens_meanwhile_sees_all_jobs_handed_in() -> None:
    server, seen = PlayedServer(), list[list[str]]()
    play(
        cast(Api, server),
        "swap",
        specs_of("swap"),
        lambda line: None,
        lambda stage, started: seen.append([each.job.name for each in started]),
        poll_s=0.0,
    )
    assert seen == [server.submitted]
