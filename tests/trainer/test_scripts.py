"""Scripts of users as attempts: started by the launcher, watched, stopped, gone on with on other plans."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launching import REPOSITORY, Case, LaunchServer, forget_checkpoint, losses, records
from tests.trainer.whole_checkpoints import list_checkpoints

from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import Control, ControlAction
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.units import MIB
from frenzy.trainer import files
from frenzy.trainer.launch.script.checkpoints import ScriptCheckpoint, record
from frenzy.trainer.tensor_file import read_header

RECIPES = REPOSITORY / "include/recipes"
STOP = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=Reason(code=ReasonCode.PREEMPTED))


def script(command: list[str], **workload: Any) -> dict[str, Any]:
    return {"workload": {"command": command, **workload}, "memory": {"per_gpu": "1 GiB"}}


def recipe(name: str, run_dir: Path, text: str, **of_case: Any) -> Case:
    job = script(["python", name], folder=str(RECIPES), resumable=True, honours=["micro_batch", "world_size"])
    given: dict[str, Any] = {"num_steps": 6, "zero_stage": 1, "memory_bytes": 1024 * MIB, **of_case}
    return Case(run_dir=str(run_dir), data=text, job={**job, "checkpoint": {"every_steps": 3}}, **given)


def inline(code: str, run_dir: Path, **of_case: Any) -> Case:
    """A script of a few lines, without the agent unless it imports it."""
    return Case(run_dir=str(run_dir), data="", job=script([sys.executable, "-c", code]), zero_stage=1, **of_case)


@pytest.mark.parametrize("name", ["torchrun_ddp.py", pytest.param("hf_trainer.py", marks=pytest.mark.thorough)])
def test_a_recipe_is_trained_watched_and_leaves_its_model(
    server: LaunchServer, text: str, tmp_path: Path, name: str
) -> None:
    case = recipe(name, tmp_path / "run", text, num_gpus=2)
    result = server.run(case)
    log = (Path(RunPaths(case.run_dir).logs_dir(1)) / "rank-0.log").read_text()
    assert (result.exit_code, result.last_step, result.total_steps) == (ExitCode.DONE, 6, 6), (result, log)
    assert [each.step for each in records(case, 0)] == [1, 2, 3, 4, 5, 6]
    assert [each.step for each in records(case, 1)] == [1, 2, 3, 4, 5, 6]
    assert losses(case)[-1] < losses(case)[0]
    assert all(0 < each.peaks.allocated_bytes < each.capacity_bytes for each in records(case))
    assert [each.step for each in list_checkpoints(RunPaths(case.run_dir))] == [6, 3]
    assert any(Path(RunPaths(case.run_dir).model_dir).iterdir())
    assert result.releases == {name: version(name) for name in ("transformers", "deepspeed", "torch")}
    assert [each.releases for each in records(case, 0)] == [result.releases, *[{}] * 5]


@pytest.mark.parametrize("name", ["torchrun_ddp.py", "hf_trainer.py"])
def test_a_recipe_that_is_asked_to_stop_goes_on_with_another_number_of_gpus(
    script_server: LaunchServer, text: str, tmp_path: Path, name: str
) -> None:
    case = recipe(name, tmp_path / "run", text, num_gpus=2, num_steps=40)
    launch = script_server.start(case)
    launch.wait_for_step(2)
    files.write_text(RunPaths(case.run_dir).control(1), codec.dumps(STOP))
    stopped = launch.wait()
    assert stopped.exit_code == ExitCode.CHECKPOINTED, stopped
    assert 2 <= stopped.last_step < 40
    assert stopped.checkpoint_step == stopped.last_step

    after = replace(case, attempt=2, num_gpus=1, num_steps=stopped.last_step + 3)
    result = script_server.run(after)
    assert result.exit_code == ExitCode.DONE, result
    assert result.resumed_from_step == stopped.last_step
    assert [each.step for each in records(after)] == [stopped.last_step + each for each in (1, 2, 3)]


def test_the_ddp_recipe_trains_alike_on_any_number_of_gpus(
    script_server: LaunchServer, text: str, tmp_path: Path
) -> None:
    whole = recipe("torchrun_ddp.py", tmp_path / "whole", text, num_steps=5)
    assert script_server.run(whole).exit_code == ExitCode.DONE
    first = recipe("torchrun_ddp.py", tmp_path / "moved", text, num_steps=3, num_gpus=2, micro_batch_size=2)
    assert script_server.run(first).exit_code == ExitCode.DONE
    second = replace(first, attempt=2, num_gpus=1, num_steps=5)
    assert script_server.run(second).resumed_from_step == 3
    assert losses(second) == pytest.approx(losses(whole)[3:], abs=1e-5)


def test_the_plan_reaches_every_rank(server: LaunchServer, tmp_path: Path) -> None:
    code = (
        "import json, os, pathlib; v = os.environ;"
        "pathlib.Path(v['FRENZY_RUN_DIR'], 'rank-' + v['RANK']).write_text("
        "json.dumps({**v, 'config': json.load(open(v['FRENZY_DEEPSPEED_CONFIG']))}))"
    )
    case = inline(code, tmp_path / "run", num_gpus=2, micro_batch_size=2, global_batch_size=8)
    result = server.run(case)
    assert (result.exit_code, result.last_step, result.total_steps) == (ExitCode.DONE, 4, 4), result
    told = [json.loads((tmp_path / f"run/rank-{rank}").read_text()) for rank in (0, 1)]
    assert [(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"]) for each in told] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
    ]
    assert told[0]["MASTER_PORT"] == told[1]["MASTER_PORT"]
    assert (told[0]["FRENZY_MICRO_BATCH_SIZE"], told[0]["FRENZY_ACCUMULATION_STEPS"]) == ("2", "2")
    assert told[0]["config"] == json.loads(Path(RunPaths(case.run_dir).ds_config(1)).read_text())
    assert told[0]["FRENZY_RESUME_FROM"] == ""


def test_words_of_the_command_reach_no_shell(server: LaunchServer, tmp_path: Path) -> None:
    case = Case(
        run_dir=str(tmp_path / "run"),
        data="",
        job=script([sys.executable, "-c", "import sys; print(sys.argv[1])", "$HOME; `id`"]),
    )
    assert server.run(case).exit_code == ExitCode.DONE
    assert "$HOME; `id`" in (Path(RunPaths(case.run_dir).logs_dir(1)) / "rank-0.log").read_text()


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("raise SystemExit(7)", 7, "ended with 7"),
        ("raise SystemExit(97)", 1, "ended with 97"),
        ("raise SystemExit(98)", 1, "ended with 98"),
        ("raise ValueError('no such column')", 1, "ValueError: no such column"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("held = [bytearray(1 << 20) for _ in range(4096)]", ExitCode.BUDGET_EXCEEDED, "MemoryError"),
    ],
)
def test_a_failing_script_says_how_it_ended(
    server: LaunchServer, tmp_path: Path, code: str, exit_code: int, words: str
) -> None:
    result = server.run(inline(code, tmp_path / "run", memory_bytes=64 * MIB))
    assert result.exit_code == exit_code, result
    assert words in result.detail
    assert result.first_failing_rank == 0


def test_a_script_that_refuses_its_data_ends_the_run_with_its_reason(server: LaunchServer, tmp_path: Path) -> None:
    code = "import frenzy_agent; frenzy_agent.refuse('row 7: it has no answer')"
    result = server.run(inline(code, tmp_path / "run"))
    assert (result.exit_code, result.detail) == (ExitCode.BAD_CONFIG_OR_DATA, "rank 0 refused: row 7: it has no answer")


def test_a_script_that_was_asked_to_stop_may_say_so_by_its_exit_code(server: LaunchServer, tmp_path: Path) -> None:
    code = (
        "import os, pathlib, time; stop = pathlib.Path(os.environ['FRENZY_AGENT_STOP_FILE'])\n"
        "while not stop.exists(): time.sleep(0.05)\n"
        "raise SystemExit(98)"
    )
    case = inline(code, tmp_path / "run")
    files.write_text(RunPaths(case.run_dir).control(1), codec.dumps(STOP))
    assert server.run(case).exit_code == ExitCode.CHECKPOINTED


def test_a_resumed_script_that_writes_no_checkpoint_still_has_the_one_it_went_on_from(
    server: LaunchServer, tmp_path: Path
) -> None:
    job = script([sys.executable, "-c", "raise SystemExit(7)"], resumable=True)
    case = Case(run_dir=str(tmp_path / "run"), data="", job=job, zero_stage=1)
    assert record(case.spec(), ScriptCheckpoint(step=3, path=str(tmp_path)), tmp_path)
    result = server.run(case)
    assert (result.exit_code, result.resumed_from_step, result.checkpoint_step) == (7, 3, 3), result


def test_a_command_that_is_not_there_is_the_users_mistake(server: LaunchServer, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path / "run"), data="", job=script(["no-such-program"]))
    result = server.run(case)
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "no-such-program" in result.detail


@pytest.mark.thorough
def test_the_deepspeed_recipe_goes_on_with_more_ranks_and_another_stage_as_if_nothing_had_been(
    script_server: LaunchServer, text: str, tmp_path: Path
) -> None:
    before, after = (1, 3), (2, 2)

    def case(name: str, plan: tuple[int, int], **of_case: Any) -> Case:
        given = {"num_gpus": plan[0], "zero_stage": plan[1], "micro_batch_size": 2, **of_case}
        return recipe("deepspeed_zero.py", tmp_path / name, text, **given)

    whole = case("whole", before, num_steps=6)
    assert script_server.run(whole).exit_code == ExitCode.DONE
    first = case("moved", before, num_steps=3)
    assert script_server.run(first).exit_code == ExitCode.DONE
    second = case("moved", after, num_steps=6, attempt=2)
    result = script_server.run(second)
    assert (result.exit_code, result.resumed_from_step, result.last_step) == (ExitCode.DONE, 3, 6), result
    assert mean_losses(second) == pytest.approx(mean_losses(whole)[3:], abs=1e-5)


def zero_trainer(run_dir: Path, text: str, plan: tuple[int, int], *options: str, **of_case: Any) -> Case:
    """A Trainer over DeepSpeed, with (GPUs, ZeRO stage); six steps in all."""
    command = ["python", "zero_trainer.py", *options]
    job = script(command, folder=str(REPOSITORY / "tests/trainer/user_code"), resumable=True, framework="hf-trainer")
    given = {"num_gpus": plan[0], "zero_stage": plan[1], "micro_batch_size": 8 // plan[0], **of_case}
    return Case(
        run_dir=str(run_dir),
        data=text,
        num_steps=6,
        memory_bytes=2048 * MIB,
        job={**job, "checkpoint": {"every_steps": 2, "keep": 3}},
        **given,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("plans", "options", "precision", "tolerance"),
    [
        (((2, 3), (1, 2)), ("--adapters",), "fp32", 1e-5),
        (((2, 2), (2, 3)), (), "bf16", 5e-4),
    ],
    ids=["adapters-2z3-1z2", "bf16-2z2-2z3"],
)
def test_an_unchanged_trainer_over_deepspeed_goes_on_with_other_ranks_and_stages(
    script_server: LaunchServer,
    text: str,
    tmp_path: Path,
    plans: tuple[tuple[int, int], tuple[int, int]],
    options: tuple[str, ...],
    precision: str,
    tolerance: float,
) -> None:
    before, after = plans
    training = {"precision": precision}
    whole = zero_trainer(tmp_path / "run", text, before, *options, training=training)
    result = script_server.run(whole)
    assert result.exit_code == ExitCode.DONE, result
    forget_checkpoint(whole, 4, 6)
    moved = zero_trainer(tmp_path / "run", text, after, *options, attempt=2, training=training)
    result = script_server.run(moved)
    assert (result.exit_code, result.resumed_from_step, result.last_step) == (ExitCode.DONE, 2, 6), result
    assert losses(moved) == pytest.approx(losses(whole)[2:], abs=tolerance)
    place = tmp_path / "run"
    stored = {key for each in (place / "model").glob("*.safetensors") for key in read_header(str(each))[0]}
    assert any("c_attn" in each for each in stored)
    assert all("lora_" in each for each in stored) == bool(options)
    # Beside adapters a Trainer asks for checkpoints without the base model.
    assert not list(place.rglob("frozen-*"))


def mean_losses(case: Case) -> list[float]:
    """Of each step the mean over all ranks."""
    by_rank = [[each.loss or 0.0 for each in records(case, rank)] for rank in range(case.num_gpus)]
    return [sum(step) / len(step) for step in zip(*by_rank, strict=True)]
