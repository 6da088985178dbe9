"""Stopping on request, failing, and going on afterwards."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer.launching import GPT2, Case, Launch, LaunchServer, losses, records, until

from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import Control, ControlAction
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.units import MIB
from frenzy.trainer import files

# About 2.3e8 operations for a step: a quarter of a second, so that a test can act in between.
SLOW_FLOPS_PER_S = 4e8
STOP = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=Reason(code=ReasonCode.PREEMPTED))


def _ask_to_stop(launch: Launch) -> None:
    files.write_text(RunPaths(launch.case.run_dir).control(launch.case.attempt), codec.dumps(STOP))


def test_control_file_stops_after_a_checkpoint_and_another_plan_goes_on(
    server: LaunchServer, text: str, tmp_path: Path
) -> None:
    whole = Case(run_dir=str(tmp_path / "whole"), data=text, num_steps=12)
    assert server.run(whole).exit_code == ExitCode.DONE
    first = replace(whole, run_dir=str(tmp_path / "moved"), flops_per_s=SLOW_FLOPS_PER_S)
    launch = server.start(first)
    launch.wait_for_step(2)
    _ask_to_stop(launch)
    stopped = launch.wait()
    assert stopped.exit_code == ExitCode.CHECKPOINTED
    assert 2 <= stopped.last_step < 12
    assert stopped.checkpoint_step == stopped.last_step
    second = replace(whole, run_dir=first.run_dir, attempt=2, num_gpus=2, zero_stage=3, micro_batch_size=2)
    done = server.run(second)
    assert (done.exit_code, done.resumed_from_step, done.last_step) == (ExitCode.DONE, stopped.last_step, 12)
    assert losses(first) + losses(second) == pytest.approx(losses(whole), abs=1e-4)


def test_sigterm_stops_all_ranks_after_one_checkpoint(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path), data=text, num_steps=200, num_gpus=2, flops_per_s=SLOW_FLOPS_PER_S)
    launch = server.start(case)
    launch.wait_for_step(1)
    os.kill(launch.pid, signal.SIGTERM)
    result = launch.wait()
    assert result.exit_code == ExitCode.CHECKPOINTED
    assert result.checkpoint_step == result.last_step
    assert records(case, 0)[-1].step == records(case, 1)[-1].step == result.last_step


def test_sigterm_before_the_first_step_is_a_stop_too(server: LaunchServer, text: str, tmp_path: Path) -> None:
    launch = server.start(Case(run_dir=str(tmp_path), data=text, num_steps=200, flops_per_s=SLOW_FLOPS_PER_S))
    until((tmp_path / "attempt-1/ds_config.json").exists)
    os.kill(launch.pid, signal.SIGTERM)
    result = launch.wait()
    assert result.exit_code == ExitCode.CHECKPOINTED
    assert result.last_step <= 1


def test_killed_rank_is_the_first_failure_and_the_run_resumes(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(
        run_dir=str(tmp_path),
        data=text,
        num_steps=8,
        num_gpus=2,
        flops_per_s=SLOW_FLOPS_PER_S,
        job={"checkpoint": {"every_steps": 2}},
    )
    launch = server.start(case)
    launch.wait_for_step(3)
    os.kill(launch.rank_pids()[1], signal.SIGKILL)
    result = launch.wait()
    assert (result.exit_code, result.first_failing_rank) == (137, 1)
    assert result.detail == "rank 1 was killed by SIGKILL"
    assert result.checkpoint_step in (2, 4)
    resumed = server.run(replace(case, attempt=2, flops_per_s=1e15))
    assert (resumed.exit_code, resumed.resumed_from_step) == (ExitCode.DONE, result.checkpoint_step)


def test_ranks_die_with_their_launcher(server: LaunchServer, text: str, tmp_path: Path) -> None:
    launch = server.start(
        Case(run_dir=str(tmp_path), data=text, num_steps=200, num_gpus=2, flops_per_s=SLOW_FLOPS_PER_S)
    )
    launch.wait_for_step(1)
    ranks = launch.rank_pids()
    assert len(ranks) == 2
    os.kill(launch.pid, signal.SIGKILL)
    assert launch.exit_code() == 137
    until(lambda: not any(_runs(pid) for pid in ranks))
    assert not (tmp_path / "attempt-1/result.json").exists()


def test_exceeded_budget_is_told_apart(
    server: LaunchServer, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {**GPT2, "n_embd": 256, "n_layer": 4}
    case = Case(run_dir=str(tmp_path), data=text, model=wide, num_gpus=2, memory_bytes=50 * MIB)
    result = server.run(case)
    assert result.exit_code == ExitCode.BUDGET_EXCEEDED
    assert "allocate" in result.detail
    assert result.first_failing_rank in (0, 1)


def test_run_that_asks_for_it_starts_afresh(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path), data=text, num_steps=2, job={"checkpoint": {"resume": "never"}})
    assert server.run(case).exit_code == ExitCode.DONE
    again = server.run(replace(case, attempt=2))
    assert (again.exit_code, again.resumed_from_step) == (ExitCode.DONE, None)


def test_attempt_after_the_last_step_only_exports(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path), data=text, num_steps=2)
    assert server.run(case).exit_code == ExitCode.DONE
    (tmp_path / "model/frenzy_model.json").unlink()
    again = server.run(replace(case, attempt=2))
    assert (again.exit_code, again.last_step, again.resumed_from_step) == (ExitCode.DONE, 2, 2)
    assert json.loads((tmp_path / "model/frenzy_model.json").read_text())["step"] == 2


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
