"""Cost of listing a job's plans: the command from the shell, the closed form alone, and the whole search.

Run it alone, or through ``make bench ARGS=marp``; it prints a table and writes
``build/bench/marp_search.json``, a list of {name, value, unit, goal, ok}. Figures are medians in
process CPU time. Each repeat plans a slightly different model, so that no cache of the last one
helps: a new job is what is timed.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from tests.bench.report import figure, publish  # noqa: E402

from frenzy.adapters.calibration_file import default_calibration  # noqa: E402
from frenzy.adapters.model_config import resolve_model_config  # noqa: E402
from frenzy.adapters.spec.cluster_file import load_cluster  # noqa: E402
from frenzy.adapters.spec.job_spec import job_from_yaml  # noqa: E402
from frenzy.core.models.shape import model_shape  # noqa: E402
from frenzy.core.planning.estimated_plans import selections  # noqa: E402
from frenzy.core.planning.marp import PlanRequest, plan_candidates  # noqa: E402
from frenzy.core.values.cluster import Cluster, Node  # noqa: E402
from frenzy.core.values.gpu_catalogue import CATALOGUE  # noqa: E402
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec  # noqa: E402
from frenzy.core.values.units import GIB  # noqa: E402

REPEATS: Final = 15
SHELL_REPEATS: Final = 5
STEPS: Final = 1000
# The cluster of Frenzy's released simulator: 288 GPUs.
PAPER_CLUSTER: Final = {"a100-40": 64, "a100-80": 32, "v100-32": 80, "rtx-3090": 80, "t4": 32}
EIGHT_TYPES: Final = ("b200", "h200", "h100", "a100-80", "a100-40", "l40s", "v100-32", "t4")
LLAMA_8B: Final = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
LLAMA_70B: Final = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job on one cluster, and the goals for it in milliseconds."""

    name: str
    request: PlanRequest
    cluster: Cluster
    closed_form_ms: float | None
    search_ms: float | None


def main() -> list[dict[str, Any]]:
    """Measure, print the table, write the JSON file, return its rows."""
    return publish("marp_search", [*from_the_shell(), *(row for case in cases() for row in measured(case))])


def from_the_shell() -> Iterator[dict[str, Any]]:
    """CPU time of ``frenzy plan`` as a process of its own, imports included."""
    for options in ((), ("--all",), ("--fit", "1xRTX4090")):
        taken_s = [shell_s(options) for _ in range(SHELL_REPEATS)]
        yield figure(" ".join(("frenzy plan", *options)), statistics.median(taken_s), "s", 1.0)


def shell_s(options: Sequence[str]) -> float:
    job = ROOT / "include/jobs/tiny-shakespeare.yaml"
    paths = os.pathsep.join((str(ROOT / "plugins"), os.environ.get("PYTHONPATH", "")))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "frenzy.cli.main", "plan", str(job), *options]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cases() -> Iterator[Case]:
    yield Case(name="demo job, laptop", request=demo(), cluster=laptop(), closed_form_ms=5.0, search_ms=20.0)
    paper, large = cluster(PAPER_CLUSTER), cluster(dict.fromkeys(EIGHT_TYPES, 1000))
    yield Case(
        name="8B, 288 GPUs of 5 types", request=asked(LLAMA_8B, 256), cluster=paper, closed_form_ms=5.0, search_ms=20.0
    )
    yield Case(
        name="70B, 288 GPUs of 5 types",
        request=asked(LLAMA_70B, 256),
        cluster=paper,
        closed_form_ms=5.0,
        search_ms=20.0,
    )
    yield Case(
        name="70B, 1,000 nodes of 8 types",
        request=asked(LLAMA_70B, 1024),
        cluster=large,
        closed_form_ms=None,
        search_ms=20.0,
    )
    yield Case(
        name="70B, same, batch of 28 divisors",
        request=asked(LLAMA_70B, 1920),
        cluster=large,
        closed_form_ms=None,
        search_ms=None,
    )
    one_type = cluster({"h100": 8000})
    yield Case(
        name="70B, 8,000 GPUs of 1 type",
        request=asked(LLAMA_70B, 1024),
        cluster=one_type,
        closed_form_ms=None,
        search_ms=None,
    )


def measured(case: Case) -> Iterator[dict[str, Any]]:
    """The rows of one case."""
    calibration = default_calibration()
    plans = sum(len(each.grid) for each in selections(case.request, case.cluster, calibration))

    def closed_form(request: PlanRequest) -> None:
        for each in selections(request, case.cluster, calibration):
            _ = each.runnable

    closed_form_ms = median_ms(closed_form, case.request)
    search_ms = median_ms(lambda request: plan_candidates(request, case.cluster, calibration), case.request)
    yield figure(f"{case.name}: memory and time of all plans", closed_form_ms, "ms", case.closed_form_ms)
    yield figure(f"{case.name}: plans judged", plans, "plans")
    yield figure(f"{case.name}: plans judged a second", 1e3 * plans / closed_form_ms, "plans/s")
    yield figure(f"{case.name}: whole search", search_ms, "ms", case.search_ms)


def median_ms(call: Callable[[PlanRequest], object], request: PlanRequest) -> float:
    """Median CPU time of ``call``, each time with another vocabulary."""
    taken_ms = []
    for repeat in range(REPEATS):
        shape = replace(request.shape, vocab_size=request.shape.vocab_size + repeat + 1)
        another = replace(request, shape=shape)
        started = time.process_time()
        call(another)
        taken_ms.append(1e3 * (time.process_time() - started))
    return statistics.median(taken_ms)


def asked(config: Mapping[str, Any], global_batch: int) -> PlanRequest:
    job = TrainingJob(
        name="bench",
        model=ModelSpec(config=config),
        data=DataSpec(path="text", sequence_length=2048),
        training=TrainingSpec(global_batch_size=global_batch, max_steps=STEPS),
    )
    return PlanRequest(job=job, shape=model_shape(config), total_steps=STEPS)


def demo() -> PlanRequest:
    """The demo's job."""
    job = job_from_yaml((ROOT / "include" / "jobs" / "tiny-shakespeare.yaml").read_text(encoding="utf-8"))
    return PlanRequest(job=job, shape=model_shape(resolve_model_config(job.model)), total_steps=60)


def laptop() -> Cluster:
    """The demo's cluster."""
    return load_cluster(ROOT / "include" / "clusters" / "laptop.yaml")


def cluster(gpus_by_type: Mapping[str, int]) -> Cluster:
    """So many GPUs of each catalogue card, eight to a node."""
    nodes = tuple(
        Node(name=f"{name}-{index}", gpu_type=name, num_gpus=8, host_memory_bytes=1024 * GIB, num_cpus=64)
        for name, count in gpus_by_type.items()
        for index in range(count // 8)
    )
    return Cluster(tuple(CATALOGUE[name].gpu for name in gpus_by_type), nodes)


if __name__ == "__main__":
    main()
