"""What is predicted for the recipes' tasks, against peaks of their scripts on a virtual GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launching import REPOSITORY, Case, LaunchServer, records

from frenzy.adapters.calibration_file import default_calibration
from frenzy.adapters.model_config import resolve_model_config
from frenzy.core.memory.closed_form import PlanRow, predict_memory
from frenzy.core.models.shape import model_shape
from frenzy.core.planning.candidates import workload_of
from frenzy.core.planning.grid import grid_of
from frenzy.core.planning.request import PlanRequest
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.resource_plan import MemoryPrediction
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.units import GIB, MIB

RECIPES = REPOSITORY / "include/recipes"
LENGTH = 512
THREAD_STACK_BYTES = 8 * MIB
LLAMA = {
    "model_type": "llama",
    "vocab_size": 6000,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
}
TEXT = "It is not in the stars to hold our destiny but in ourselves. " * 10
ROWS: Mapping[str, list[dict[str, Any]]] = {
    "sft": [{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": TEXT}]}],
    "dpo": [{"prompt": "Who?", "chosen": TEXT, "rejected": TEXT[1:]}],
    "classification": [{"text": TEXT, "label": "a"}, {"text": TEXT[1:], "label": "b"}],
    "language-model": [{"text": TEXT}],
}
SCRIPTS = {
    "sft": "sft_chat.py",
    "dpo": "dpo_pairs.py",
    "classification": "classify.py",
    "language-model": "pretrain.py",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recipe of ``task``, and what differs from its plain settings."""

    task: str
    lora: bool = False
    checkpointing: bool = False
    accumulation: int = 1
    num_gpus: int = 1
    micro_batch: int = 4

    def case(self, folder: Path) -> Case:
        data = folder / "rows.jsonl"
        data.write_text("".join(json.dumps(each) + "\n" for each in ROWS[self.task] * 64))
        workload = {
            "command": ["python", SCRIPTS[self.task]],
            "folder": str(RECIPES),
            "framework": "hf-trainer",
            "task": self.task,
            "honours": ["micro_batch", "world_size", "checkpointing"],
        }
        training = {"precision": "fp32", **({"lora": {"rank": 8}} if self.lora else {})}
        return Case(
            run_dir=str(folder / "run"),
            data=str(data),
            model=LLAMA,
            data_section={"sequence_length": LENGTH, "validation_fraction": 0.0},
            training=training,
            job={"workload": workload, "checkpoint": {"every_steps": 1000}},
            num_steps=2,
            num_gpus=self.num_gpus,
            zero_stage=1,
            micro_batch_size=self.micro_batch,
            global_batch_size=self.micro_batch * self.accumulation * self.num_gpus,
            activation_checkpointing=self.checkpointing,
            memory_bytes=4 * GIB,
        )

    def prediction(self, case: Case) -> MemoryPrediction:
        job = case.spec().job
        request = PlanRequest(job=job, shape=model_shape(resolve_model_config(job.model)), total_steps=3)
        row = PlanRow(self.num_gpus, 1, 1, self.micro_batch, self.accumulation, self.checkpointing)
        table = predict_memory(workload_of(request, DeviceKind.VIRTUAL), grid_of([row]), default_calibration())
        assert table is not None
        return table.prediction(0)


RUNS = [
    Run(task="language-model", checkpointing=True, accumulation=2),
    Run(task="sft", lora=True),
    Run(task="dpo"),
    Run(task="dpo", checkpointing=True, accumulation=2, micro_batch=2),
    Run(task="classification", lora=True, micro_batch=8),
    Run(task="classification", num_gpus=2),
]


@pytest.mark.thorough
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_a_recipes_task_takes_what_is_predicted(server: LaunchServer, run: Run, tmp_path: Path) -> None:
    case = run.case(tmp_path)
    result = server.run(case)
    log = (Path(RunPaths(case.run_dir).logs_dir(case.attempt)) / "rank-0.log").read_text()
    assert result.exit_code == ExitCode.DONE, log
    measured = max(each.peaks.allocated_bytes for each in records(case))
    predicted = run.prediction(case)
    # The exchange of gradients starts threads; by when the last starts, its stack is counted or not.
    thread = THREAD_STACK_BYTES if run.num_gpus > 1 else 0
    assert abs(predicted.peak_allocated_bytes - measured) <= 0.05 * measured + thread
    assert predicted.required_bytes >= measured
