"""What the planner answers to reports of runs that ran out of memory, beside what their threads ended up doing.

A report is asked for twice, with twice its cards' memory on the host. First as a new job: its model, method, batch and
longest sequence; stage, micro-batch, checkpointing and offload are the planner's own choice. Then as the plan that
failed (``frenzy plan --fit PLAN``): with its stage (FSDP's is 3, replicas have 1), micro-batch, checkpointing, offload
and attention, where coefficients of that are kept. The answer is each single change that mends it. What is not
recorded is taken to be what needs most.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.planning.asked_cards import nodes_of_cards
from frenzy.core.planning.marp import PlanRequest, changes_of_plan, failed_plan, plan_candidates, remedies
from frenzy.core.planning.remedy_changes import Change
from frenzy.core.planning.single_changes import SingleChange
from frenzy.core.values.cluster import Cluster
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.job import DataSpec, LoraSpec, ModelSpec, Precision, TrainingJob, TrainingSpec
from frenzy.core.values.resource_plan import PlanShape, ResourcePlan
from frenzy.evaluation.settings_of_runs import published_models, published_name, shape_of

_STEPS: Final = 1000
# What changes a thread's setting.
_CHANGED: Final = {
    "zero_stage": "ZeRO stage",
    "micro_batch": "micro-batch",
    "num_gpus": "GPUs",
    "offload_optimizer": "optimizer states",
    "attention": "training.attention",
    "sequence_length": "data.sequence_length",
}
_AT_MOST: Final = frozenset({"micro_batch", "sequence_length"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRemedy:
    """ended_with: what the thread did. answer: the planner's for a new job. does_the_same: it has each setting of that.

    failed: the report's own plan. alone: the single changes that mend it. place: of the first of them that changes what
    the thread did, as far or further, from 1; None where none does. is_advised: nobody says that it was done.
    is_of_length: by shorter sequences, which were compared later than the rest.
    """

    source: str
    ended_with: str
    answer: str
    does_the_same: bool
    failed: str
    alone: tuple[str, ...]
    place: int | None
    is_advised: bool
    is_of_length: bool


def thread_remedies(path: Path, calibration: Calibration) -> Sequence[ThreadRemedy]:
    """Of each run of the file that ran out of memory and whose thread tells settings that ended that."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(found for row in rows for found in _compared(row, calibration))


def _compared(row: dict[str, str], calibration: Calibration) -> Iterator[ThreadRemedy]:
    settings = dict(each.split("=") for each in row["ended_settings"].split())
    if row["outcome"] != "out of memory" or not settings:
        return
    answer, plan, changes = _answer(row, calibration)
    failed, alone = _mended(row, calibration)
    named = (place for place, each in enumerate(alone, start=1) if _names(each.changes[0], settings))
    yield ThreadRemedy(
        source=row["source"],
        ended_with=row["ended_with"],
        answer=answer,
        does_the_same=plan is not None and all(_has(plan, changes, *each) for each in settings.items()),
        is_advised="was advised" in row["ended_with"],
        is_of_length="sequence_length" in settings,
        failed=failed.plan_id,
        alone=tuple(" and ".join(map(str, each.changes)) for each in alone),
        place=next(named, None),
    )


def _answer(row: dict[str, str], calibration: Calibration) -> tuple[str, ResourcePlan | None, tuple[Change, ...]]:
    """The planner's words, and the plan and changes that they lead to; None where it knows no way."""
    request, cluster = _request(row), _cards(row)
    try:
        candidates = plan_candidates(request, cluster, calibration)
    except PermanentError as error:
        return error.reason.detail, None, ()
    if candidates[0].feasible:
        return candidates[0].plan.plan_id, candidates[0].plan, ()
    remedy = remedies(request, cluster, calibration)
    if remedy is None:
        return "no change was found", None, ()
    best = plan_candidates(remedy.request, remedy.cluster, calibration)[0].plan
    return f"{remedy.sentence} {best.plan_id}", best, remedy.changes


def _mended(row: dict[str, str], calibration: Calibration) -> tuple[PlanShape, tuple[SingleChange, ...]]:
    """The report's plan, and each change that alone mends it."""
    cluster, failed, request = _cards(row), _plan(row), _request(row)
    told: dict[str, Any] = {"attention": row["attention"].split("|")[0], "loss": row["loss"] or "torch"}
    as_told = replace(request, job=replace(request.job, training=replace(request.job.training, **told)))
    try:
        plan = failed_plan(failed, as_told, cluster, calibration)
    except PermanentError:  # no coefficients of its attention
        plan = failed_plan(failed, request, cluster, calibration)
    return failed, changes_of_plan(plan, cluster, calibration)


def _plan(row: dict[str, str]) -> PlanShape:
    num_gpus = int(_last(row["num_gpus"]))
    stage = {"deepspeed": _last(row["zero_stage"]), "fsdp": "3", "torch": "1"}[row["framework"]]
    return PlanShape(
        gpu_type=row["gpu"],
        num_gpus=num_gpus,
        tp=1,
        zero_stage=int(stage) if num_gpus > 1 else 1,
        micro_batch_size=int(_last(row["micro_batch"])),
        activation_checkpointing=row["checkpointing"] == "true",
        offload_optimizer=row["offload_optimizer"] == "true",
    )


def _cards(row: dict[str, str]) -> Cluster:
    return nodes_of_cards(f"{_last(row['num_gpus'])}x{row['gpu']}")


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


def _names(change: Change, settings: Mapping[str, str]) -> bool:
    """Whether it changes what the thread did, and goes as far; parameters on the host are not offered."""
    return all(
        change.field == _CHANGED.get(name) and _goes_as_far(change, name, value) for name, value in settings.items()
    )


def _goes_as_far(change: Change, name: str, value: str) -> bool:
    """Of attention and offload any change does: torch's own attention takes FlashAttention's kernel."""
    if not value.isdecimal():
        return change.after != "eager"
    after, number = int(change.after), int(value)
    return after <= number if name in _AT_MOST else after >= number


def _has(plan: ResourcePlan, changes: Sequence[Change], name: str, value: str) -> bool:
    """Whether a new job's plan goes as far as the thread; fused attention it always has."""
    number = int(value) if value.isdecimal() else 0
    after = {each.field: each.after for each in changes}
    return {
        "zero_stage": plan.zero_stage >= number,
        "micro_batch": plan.micro_batch_size <= number,
        "num_gpus": plan.num_gpus >= number,
        "offload_optimizer": plan.offload_optimizer,
        "offload_parameters": False,
        "attention": True,
        "sequence_length": 0 < int(after.get("data.sequence_length", 0)) <= number,
    }[name]
