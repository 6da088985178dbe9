"""What the planner answers to reports of runs that ran out of memory, beside what their threads ended up doing.

A report's job is asked for as a user of the product would: its model, method, batch and longest sequence on its cards,
with twice their memory on the host. Stage, micro-batch, checkpointing and offload are the planner's own choice.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.planning.asked_cards import nodes_of_cards
from frenzy.core.planning.marp import PlanRequest, plan_candidates, remedies
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.job import DataSpec, LoraSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.values.resource_plan import ResourcePlan
from frenzy.evaluation.settings_of_runs import published_models, published_name, shape_of

_STEPS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRemedy:
    """ended_with: what the thread did. answer: the planner's. does_the_same: it has each setting of the thread's."""

    source: str
    ended_with: str
    answer: str
    does_the_same: bool


def thread_remedies(path: Path, calibration: Calibration) -> Sequence[ThreadRemedy]:
    """Of each run of the file that ran out of memory and whose thread tells settings that ended that."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(found for row in rows for found in _compared(row, calibration))


def _compared(row: dict[str, str], calibration: Calibration) -> Iterator[ThreadRemedy]:
    settings = dict(each.split("=") for each in row["ended_settings"].split())
    if row["outcome"] != "out of memory" or not settings:
        return
    answer, plan = _answer(row, calibration)
    yield ThreadRemedy(
        source=row["source"],
        ended_with=row["ended_with"],
        answer=answer,
        does_the_same=plan is not None and all(_has(plan, name, value) for name, value in settings.items()),
    )


def _answer(row: dict[str, str], calibration: Calibration) -> tuple[str, ResourcePlan | None]:
    """The planner's words, and the plan they lead to; None where it knows no way."""
    request, cluster = _request(row), nodes_of_cards(f"{_last(row['num_gpus'])}x{row['gpu']}")
    try:
        candidates = plan_candidates(request, cluster, calibration)
    except PermanentError as error:
        return error.reason.detail, None
    if candidates[0].feasible:
        return candidates[0].plan.plan_id, candidates[0].plan
    remedy = remedies(request, cluster, calibration)
    if remedy is None:
        return "no change was found", None
    best = plan_candidates(remedy.request, remedy.cluster, calibration)[0].plan
    return f"{remedy.sentence} {best.plan_id}", best


def _request(row: dict[str, str]) -> PlanRequest:
    name = published_name(row["model"])
    num_gpus, micro_batch = int(_last(row["num_gpus"])), int(_last(row["micro_batch"]))
    lora = None
    if row["lora_rank"]:
        lora = LoraSpec(rank=int(row["lora_rank"]), target_modules=tuple(row["lora_targets"].split()))
    training = TrainingSpec(
        max_steps=_STEPS,
        global_batch_size=num_gpus * micro_batch * int(row["accumulation"] or 1),
        precision=Precision.FP16 if row["precision"] == "fp16" else Precision.BF16,
        lora=lora,
    )
    job = TrainingJob(
        name="report",
        model=ModelSpec(config=published_models()[name]),
        data=DataSpec(path="text", sequence_length=int(_last(row["sequence_length"]))),
        training=training,
    )
    return PlanRequest(job=job, shape=shape_of(name), total_steps=_STEPS)


def _last(cell: str) -> str:
    """The greatest of what is not recorded."""
    return cell.rsplit("|", 1)[-1] or "1"


def _has(plan: ResourcePlan, name: str, value: str) -> bool:
    """Whether ``plan`` goes as far as the thread. Parameters on the host are not offered; fused attention always is."""
    number = int(value) if value.isdecimal() else 0
    return {
        "zero_stage": plan.zero_stage >= number,
        "micro_batch": plan.micro_batch_size <= number,
        "num_gpus": plan.num_gpus >= number,
        "offload_optimizer": plan.offload_optimizer,
        "offload_parameters": False,
        "attention": True,
    }[name]
