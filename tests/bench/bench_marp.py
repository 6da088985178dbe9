"""Cost of listing a job's plans: CPU time of ``plan_candidates`` on clusters of three sizes.

Run it alone, or through ``make bench``; it prints a table and writes ``build/bench/marp.json``,
a list of {name, value, unit, goal, ok}: medians in milliseconds of process CPU time.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from frenzy.adapters.calibration import default_calibration
from frenzy.core.cluster import Cluster, Node
from frenzy.core.gpu_catalogue import CATALOGUE
from frenzy.core.hardware import GpuType
from frenzy.core.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.core.marp import PlanRequest, plan_candidates
from frenzy.core.model_shape import model_shape
from frenzy.core.units import GIB

OUTPUT = Path(__file__).parents[2] / "build" / "bench" / "marp.json"
REPEATS = 11
# The cluster of Frenzy's released simulator, then the same cards on ten times as many GPUs.
PAPER_CLUSTER = {"a100-40": 64, "a100-80": 32, "v100-32": 80, "rtx-3090": 80, "t4": 32}
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def main() -> list[dict[str, Any]]:
    """Measure, print the table, write the JSON file, return its rows."""
    rows = [
        row("plans of an 8B model on 288 GPUs of five types", cluster(1), 256, 100.0),
        row("plans of an 8B model on 2,880 GPUs of five types", cluster(10), 1024, None),
    ]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    for each in rows:
        verdict = "ok" if each["ok"] else "MISSED"
        goal = "" if each["goal"] is None else f"goal {each['goal']:g} {each['unit']}  {verdict}"
        print(f"{each['name']:60} {each['value']:10.2f} {each['unit']}  {goal}")
    return rows


def row(name: str, there: Cluster, global_batch: int, goal_ms: float | None) -> dict[str, Any]:
    """One line of the report."""
    job = TrainingJob(
        name="bench",
        model=ModelSpec(config=LLAMA_8B),
        data=DataSpec(path="text", sequence_length=2048),
        training=TrainingSpec(global_batch_size=global_batch, max_steps=1000),
    )
    request = PlanRequest(job=job, shape=model_shape(LLAMA_8B), total_steps=1000)
    calibration = default_calibration()
    taken_ms = []
    for _ in range(REPEATS):
        started = time.process_time()
        plan_candidates(request, there, calibration)
        taken_ms.append(1e3 * (time.process_time() - started))
    value = statistics.median(taken_ms)
    return {"name": name, "value": value, "unit": "ms", "goal": goal_ms, "ok": goal_ms is None or value <= goal_ms}


def cluster(times: int) -> Cluster:
    """The paper's cluster, ``times`` over, eight GPUs to a node."""
    types: tuple[GpuType, ...] = tuple(CATALOGUE[name].gpu for name in PAPER_CLUSTER)
    nodes = tuple(
        Node(name=f"{name}-{index}", gpu_type=name, num_gpus=8, host_memory_bytes=512 * GIB, num_cpus=64)
        for name, count in PAPER_CLUSTER.items()
        for index in range(times * count // 8)
    )
    return Cluster(types, nodes)


if __name__ == "__main__":
    main()
