"""What a demo is judged by: a control run with room for everything, and a model that loads."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.control import control_spec
from tests.scenarios.evidence import check_model
from tests.unit.scenarios.evidence import good, plan

from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import deepspeed_config

VIRTUAL = DeviceKind.VIRTUAL


def test_control_run_trains_the_same_with_room_for_everything() -> None:
    job = good().view.run.job
    spec = control_spec(job, plan(2, 4), "control-1", "/runs/control-1", 10**12)
    assert deepspeed_config(spec.job, spec.plan, VIRTUAL) == deepspeed_config(job, plan(2, 4), VIRTUAL)
    assert (spec.job.training, spec.job.model, spec.job.data) == (job.training, job.model, job.data)
    assert spec.gpu.memory_bytes == spec.plan.gpu_memory_bytes == 10**12
    assert spec.placement.num_gpus == 2
    assert spec.job.checkpoint.resume == "never"


def test_model_folder_that_is_missing_or_broken_is_a_problem(tmp_path: Path) -> None:
    assert check_model(str(tmp_path / "none")).problem
    (tmp_path / "config.json").write_text("{}")
    broken = check_model(str(tmp_path))
    assert broken.problem
    assert "config.json" in broken.files
