"""A script of a user's own as a job: one Airflow, real ranks, a move to other GPUs because its memory grows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.growing import check_moves, plans_of
from tests.e2e.together import Run
from tests.e2e.walker import Walker

from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.resource_plan import MemorySource
from frenzy.settings import CHECKOUT

pytestmark = pytest.mark.thorough

RECIPE = CHECKOUT / "include/recipes/torchrun_ddp.py"
# The recipe as it is, beside something that keeps 2 MiB more after each step.
GROWING = """
import time
import torch
import torchrun_ddp
import frenzy_agent

held, report = [], frenzy_agent.step

def step(*given, **named):
    held.append(torch.ones(2**19))
    time.sleep(0.4)
    report(*given, **named)

frenzy_agent.step = step
torchrun_ddp.main()
"""
# The recipe as it is, slow enough to be stopped.
SLOW = """
import time
import torch
import torchrun_ddp
import frenzy_agent

report = frenzy_agent.step

def step(*given, **named):
    time.sleep(0.4)
    report(*given, **named)

frenzy_agent.step = step
torchrun_ddp.main()
"""
NO_MODEL = {"config": None, "tokenizer": "byte"}


def start(walker: Walker, name: str, folder: Path, code: str, **sections: Any) -> Run:
    """A job of the script ``code``, which finds the recipe beside it."""
    folder.mkdir(exist_ok=True)
    shutil.copy(RECIPE, folder)
    (folder / "own.py").write_text(code, encoding="utf-8")
    workload = {"command": ["python", "own.py"], "folder": str(folder), "resumable": True}
    workload |= {"honours": ["micro_batch", "world_size"], **sections.pop("workload", {})}
    return walker.start(name, model=NO_MODEL, workload=workload, checkpoint={"every_steps": 100}, **sections)


@pytest.fixture(scope="module")
def growing(walker: Walker, tmp_path_factory: pytest.TempPathFactory) -> Run:
    # A rank of the recipe takes about 100 MiB.
    sections = {"workload": {"max_gpus": 2}, "memory": {"per_gpu": "120 MiB"}, "training": {"max_steps": 40}}
    return start(walker, "own-script", tmp_path_factory.mktemp("growing"), GROWING, **sections)


@pytest.fixture(scope="module")
def slow(walker: Walker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """The script's folder and its first run."""
    folder = tmp_path_factory.mktemp("slow")
    return folder, start(walker, "rehearsed-script", folder, SLOW, training={"max_steps": 30})


@pytest.mark.usefixtures("slow")
def test_a_script_whose_memory_grows_is_moved_and_goes_on_from_its_own_checkpoint(walker: Walker, growing: Run) -> None:
    view = walker.succeed(*growing)
    check_moves(view)
    first, last = view.attempts[0], view.attempts[-1]
    assert first.outcome is not None
    assert first.outcome.code is ReasonCode.MEMORY_PRESSURE_FORECAST, plans_of(view)
    assert (first.plan.num_gpus, first.plan.gpu_type) != (last.plan.num_gpus, last.plan.gpu_type)
    assert last.plan.gpu_memory_bytes > first.plan.gpu_memory_bytes
    assert {each.plan.memory.source for each in view.attempts} == {MemorySource.DECLARED}
    assert last.result is not None
    assert (last.result.last_step, last.result.total_steps) == (40, 40)
    assert last.result.resumed_from_step == first.checkpoint_step
    assert last.last_loss is not None


def test_a_script_of_unknown_memory_is_rehearsed_once_and_its_next_run_is_planned_from_what_it_took(
    walker: Walker, slow: tuple[Path, Run]
) -> None:
    folder, run = slow
    first = walker.succeed(*run)
    assert [each.plan.memory.source for each in first.attempts][:2] == [MemorySource.REHEARSAL, MemorySource.LEARNT]
    rehearsal, after = first.attempts[:2]
    assert rehearsal.outcome is not None
    assert rehearsal.outcome.code is ReasonCode.REHEARSED
    assert 3 <= rehearsal.last_step < 30
    assert after.result is not None
    assert after.result.resumed_from_step == rehearsal.checkpoint_step
    assert first.run.num_reschedules == 0
    again = walker.succeed(*start(walker, "learnt-script", folder, SLOW, training={"max_steps": 4}))
    assert {each.plan.memory.source for each in again.attempts} == {MemorySource.LEARNT}
    assert again.attempts[0].plan.memory.learnt_from >= 1
