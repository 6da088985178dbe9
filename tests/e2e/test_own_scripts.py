"""A script of a user's own as a job: one Airflow, real ranks, a move to other GPUs because its memory grows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.e2e.growing import check_moves, plans_of
from tests.e2e.walker import Walker

from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import ReasonCode
from frenzy.core.values.resource_plan import MemorySource
from frenzy.settings import CHECKOUT

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
NO_MODEL = {"config": None, "tokenizer": "byte"}


@pytest.mark.thorough
def test_a_script_whose_memory_grows_is_moved_and_goes_on_from_its_own_checkpoint(
    walker: Walker, tmp_path: Path
) -> None:
    shutil.copy(RECIPE, tmp_path)
    (tmp_path / "growing.py").write_text(GROWING, encoding="utf-8")
    dag_id, run_id = walker.start(
        "own-script",
        model=NO_MODEL,
        workload={
            "command": ["python", "growing.py"],
            "folder": str(tmp_path),
            "resumable": True,
            "max_gpus": 2,
            "honours": ["micro_batch", "world_size"],
        },
        memory={"per_gpu": "120 MiB"},  # a rank of the recipe takes about 100 MiB
        training={"max_steps": 40},
        checkpoint={"every_steps": 100},
    )
    view = walker.succeed(dag_id, run_id)
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


@pytest.mark.thorough
def test_a_script_of_unknown_memory_is_rehearsed_once_and_its_next_run_is_planned_from_what_it_took(
    walker: Walker, tmp_path: Path
) -> None:
    shutil.copy(RECIPE, tmp_path)
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")

    def run(name: str) -> RunView:
        dag_id, run_id = walker.start(
            name,
            model=NO_MODEL,
            workload={
                "command": ["python", "slow.py"],
                "folder": str(tmp_path),
                "resumable": True,
                "honours": ["micro_batch", "world_size"],
            },
            training={"max_steps": 30},
            checkpoint={"every_steps": 100},
        )
        return walker.succeed(dag_id, run_id)

    first = run("rehearsed-script")
    assert [each.plan.memory.source for each in first.attempts][:2] == [MemorySource.REHEARSAL, MemorySource.LEARNT]
    rehearsal, after = first.attempts[:2]
    assert rehearsal.outcome is not None
    assert rehearsal.outcome.code is ReasonCode.REHEARSED
    assert 3 <= rehearsal.last_step < 30
    assert after.result is not None
    assert after.result.resumed_from_step == rehearsal.checkpoint_step
    assert first.run.num_reschedules == 0
    again = run("learnt-script")
    assert {each.plan.memory.source for each in again.attempts} == {MemorySource.LEARNT}
    assert again.attempts[0].plan.memory.learnt_from >= 1
