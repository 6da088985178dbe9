"""What every launcher promises; each implementation has a test class that inherits these."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.contract import values
from tests.contract.eventually import eventually

from frenzy.core.values.launch import LaunchSpec
from frenzy.ports import Launcher, WorkersAccount, WorkersState


class World:
    """A launcher, and specs whose workers wait to be stopped."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.launcher = launcher
        self._folder = folder
        self._specs: list[LaunchSpec] = []

    def spec(self, attempt: int = 1) -> LaunchSpec:
        spec = values.launch_spec(f"{self._folder}/0123456789ab", attempt_number=attempt)
        env = {"FAKE_TRAINER": "wait", "FAKE_STARTS": str(self._folder / "starts")}
        spec = replace(spec, job=replace(spec.job, env=env))
        self._specs.append(spec)
        return spec

    def is_in(self, spec: LaunchSpec, state: WorkersState) -> bool:
        return self.launcher.state(spec) is state

    def end(self) -> None:
        for each in self._specs:
            self.launcher.stop(each, grace_s=0)
        for each in self._specs:
            eventually(lambda each=each: self.is_in(each, WorkersState.GONE))


class LauncherContract:
    """Needs a fixture ``world``: a World, ended after the test."""

    def test_workers_are_not_started_then_alive_then_gone(self, world: World) -> None:
        spec = world.spec()
        assert world.launcher.state(spec) is WorkersState.NOT_STARTED
        world.launcher.launch(spec)
        assert world.launcher.state(spec) is WorkersState.ALIVE
        world.launcher.stop(spec, grace_s=30)
        eventually(lambda: world.is_in(spec, WorkersState.GONE))

    def test_launching_again_gives_the_same_reference(self, world: World) -> None:
        spec = world.spec()
        reference = world.launcher.launch(spec)
        assert world.launcher.launch(spec) == reference
        world.launcher.stop(spec, grace_s=30)
        eventually(lambda: world.is_in(spec, WorkersState.GONE))
        assert world.launcher.launch(spec) == reference
        assert world.launcher.state(spec) is WorkersState.GONE

    def test_attempts_are_apart(self, world: World) -> None:
        first, second = world.spec(1), world.spec(2)
        world.launcher.launch(first)
        assert world.launcher.state(second) is WorkersState.NOT_STARTED
        world.launcher.launch(second)
        world.launcher.stop(first, grace_s=30)
        eventually(lambda: world.is_in(first, WorkersState.GONE))
        assert world.launcher.state(second) is WorkersState.ALIVE

    def test_stopping_may_be_repeated(self, world: World) -> None:
        spec = world.spec()
        world.launcher.launch(spec)
        for _ in range(3):
            world.launcher.stop(spec, grace_s=30)
        eventually(lambda: world.is_in(spec, WorkersState.GONE))
        world.launcher.stop(spec, grace_s=30)
        assert world.launcher.state(spec) is WorkersState.GONE

    def test_workers_that_were_stopped_before_they_started_never_start(self, world: World) -> None:
        spec = world.spec()
        world.launcher.stop(spec, grace_s=1)
        assert world.launcher.state(spec) is WorkersState.GONE
        world.launcher.launch(spec)
        assert world.launcher.state(spec) is WorkersState.GONE

    def test_an_account_says_the_same_as_the_state(self, world: World) -> None:
        spec = world.spec()
        assert world.launcher.account(spec) == WorkersAccount(state=WorkersState.NOT_STARTED)
        world.launcher.launch(spec)
        assert world.launcher.account(spec).state is WorkersState.ALIVE
        world.launcher.stop(spec, grace_s=30)
        eventually(lambda: world.launcher.account(spec).state is WorkersState.GONE)

    def test_it_is_known_since_when_workers_run(self, world: World) -> None:
        spec, before_s = world.spec(), time.time()
        world.launcher.launch(spec)
        began_s = eventually(lambda: world.launcher.account(spec).running_since_s)
        assert before_s - 1.0 <= began_s <= time.time()
        assert world.launcher.account(spec).running_since_s == began_s

    def test_nothing_remains_of_an_attempt_that_was_removed(self, world: World) -> None:
        spec = world.spec()
        world.launcher.launch(spec)
        world.launcher.stop(spec, grace_s=30)
        eventually(lambda: world.is_in(spec, WorkersState.GONE))
        world.launcher.remove(spec.run_key, spec.attempt)
        eventually(lambda: (spec.run_key, spec.attempt) not in world.launcher.remains())
        assert world.launcher.state(spec) is WorkersState.GONE
        world.launcher.launch(spec)
        assert world.launcher.state(spec) is WorkersState.GONE, "never started twice"
