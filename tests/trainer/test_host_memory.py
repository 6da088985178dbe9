"""The host memory that is planned is the highest resident memory of the ranks, within 15 %.

A virtual GPU's own memory is host memory: what is predicted for it is added, moment by moment, because
an offloaded optimizer steps when the activations are gone.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.trainer.launching import Case, Launch, LaunchServer

from frenzy.adapters.calibration_file import default_calibration
from frenzy.adapters.model_config import resolve_model_config
from frenzy.core.memory.closed_form import PlanRow, predict_memory
from frenzy.core.memory.host_memory import CHECKPOINT_CHUNK_BYTES
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.units import GIB, MIB
from frenzy.trainer.tensor_file import CHUNK_BYTES

pytestmark = pytest.mark.thorough

TOLERANCE: Final = 0.15
NUM_RANKS: Final = 2
# 83 million parameters: the states outweigh the processes.
LLAMA: Final = {
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 10,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"zero_stage": 2}, id="stage 2"),
        pytest.param({"zero_stage": 3}, id="stage 3"),
        pytest.param({"zero_stage": 2, "offload_optimizer": True}, id="stage 2, offloaded"),
        pytest.param({"zero_stage": 3, "offload_optimizer": True}, id="stage 3, offloaded"),
    ],
)
def test_the_host_memory_of_a_rank_is_as_planned(
    server: LaunchServer, text: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    case = Case(
        run_dir=str(tmp_path / "run"),
        data=text,
        model=LLAMA,
        # few tokens: processors without instructions for bf16 take a hundred times as long for its products
        data_section={"sequence_length": 16},
        training={"precision": "bf16"},
        num_gpus=NUM_RANKS,
        global_batch_size=NUM_RANKS,
        micro_batch_size=1,
        num_steps=2,
        job={"checkpoint": {"every_steps": 1}},
        memory_bytes=4 * GIB,
        **changes,
    )
    launch = server.start(case)
    measured = max(highest_resident_bytes(launch).values())
    assert launch.exit_code() == 0
    planned = planned_bytes(case)
    print(f"\nplanned {planned / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB, {planned / measured - 1:+.1%}")
    assert planned == pytest.approx(measured, rel=TOLERANCE)


def test_a_checkpoint_is_staged_by_the_chunks_that_it_is_written_in() -> None:
    assert CHECKPOINT_CHUNK_BYTES == CHUNK_BYTES


def planned_bytes(case: Case) -> int:
    """Of one rank with the libraries that it shares, and with its virtual GPU's memory."""
    spec, plan = case.spec(), case.spec().plan
    shape = model_shape(resolve_model_config(spec.job.model))
    workload = workload_of(PlanRequest(job=spec.job, shape=shape, total_steps=1), DeviceKind.VIRTUAL)
    row = PlanRow(
        plan.dp, 1, plan.zero_stage, plan.micro_batch_size, plan.accumulation_steps, False, plan.offload_optimizer
    )
    workload = replace(workload, bucket_elements=plan.bucket_elements)
    table = predict_memory(workload, grid_of([row]), default_calibration())
    assert table is not None
    host = {each.name: each.num_bytes for each in table.host.of_plan(0)}
    passing = host.pop("temporaries of the optimizer step", 0)
    device = (float(each.total[0]) + (passing if each.name == "optimizer step" else 0) for each in table.moments)
    return sum(host.values()) + round(max(device))


def highest_resident_bytes(launch: Launch) -> dict[int, int]:
    """By rank's pid, the kernel's high-water mark, read until the launcher ends."""
    found: dict[int, int] = {}
    while _state(launch.pid) != "Z":
        with contextlib.suppress(OSError):
            for pid in launch.rank_pids():
                found[pid] = max(found.get(pid, 0), _high_water_bytes(pid))
        time.sleep(0.02)
    return found


def _state(pid: int) -> str:
    """Of a process whose parent waits for it: it is there, if only as a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _high_water_bytes(pid: int) -> int:
    """0 of a process that has given its memory back."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM:")), 0)
