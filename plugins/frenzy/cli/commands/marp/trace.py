"""``frenzy marp trace``: the memory of a step by running the real model class on tensors without data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from frenzy.adapters.spec.spec_file import checked_spec
from frenzy.cli.render.console import out, print_json, show_note
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import deepspeed_config
from frenzy.core.values.resource_plan import MemoryPrediction, ResourcePlan
from frenzy.core.values.units import format_bytes
from frenzy.core.values.zero_buckets import bucket_elements_for

if TYPE_CHECKING:
    from frenzy.core.values.job import TrainingJob
    from frenzy.trainer.trace.traced_moments import TraceResult

_DEEPSPEED: Final = "DeepSpeed"
_TORCH: Final = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPlan:
    """What was traced, by which engine, and what came out."""

    engine: str
    rank: int
    num_ranks: int
    zero_stage: int
    micro_batch_size: int
    accumulation_steps: int
    activation_checkpointing: bool
    device: str
    result: TraceResult


def trace(  # noqa: PLR0913  # one argument for each option of the command
    spec: Annotated[Path, typer.Argument(help="The job's YAML file; - reads it from standard input.")],
    cluster: Annotated[Path | None, typer.Option(help="Trace the plan that ranks first on this cluster.")] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Data-parallel ranks.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="The data-parallel rank that is traced.")] = 0,
    zero: Annotated[int | None, typer.Option(min=0, max=3, help="ZeRO stage; 0: torch's own optimizer.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Sequences of a micro-batch.")] = None,
    accumulation: Annotated[int | None, typer.Option(min=1, help="Micro-batches of a step.")] = None,
    checkpointing: Annotated[
        bool | None, typer.Option("--checkpointing/--no-checkpointing", help="Recompute activations.")
    ] = None,
    attention: Annotated[str | None, typer.Option(help="eager, sdpa, flash_attention_2; the job's by default.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="With --zero 0: adamw, adamw-fused or sgd.")] = None,
    device: Annotated[str, typer.Option(help="Whose kernels and allocator are modelled: cuda or cpu.")] = "cuda",
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Run two steps of the job's model without data or GPU, and report the memory held at each point in time.

    The plan is one data-parallel rank with micro-batches of one sequence, ZeRO stage 1, unless a
    cluster or options say otherwise.
    """
    job = checked_spec(spec).job
    first = _first_plan(job, cluster) if cluster else _smallest_plan(job)
    dp, micro_batch = dp or first.dp, micro_batch or first.micro_batch_size
    plan = replace(
        first,
        dp=dp,
        num_gpus=dp * first.tp,
        zero_stage=first.zero_stage if zero is None else zero,
        micro_batch_size=micro_batch,
        accumulation_steps=accumulation or first.accumulation_steps,
        activation_checkpointing=first.activation_checkpointing if checkpointing is None else checkpointing,
    )
    traced = trace_plan(job, plan, rank=rank, device=device, attention=attention, optimizer=optimizer)
    if as_json:
        print_json(traced)
    else:
        _show(job.name, traced)
    return 0


def trace_plan(
    job: TrainingJob, plan: ResourcePlan, *, rank: int, device: str, attention: str | None, optimizer: str | None
) -> TracedPlan:
    """The traced memory of ``rank`` of ``plan``. Raises PermanentError for what cannot be traced."""
    from frenzy.adapters.model_config import resolve_model_config
    from frenzy.trainer.trace.step import TraceChoices, num_trained, traced_run

    _check(job, plan, rank)
    by_torch = plan.zero_stage == 0
    choices = TraceChoices(
        batch=plan.micro_batch_size,
        sequence_length=job.data.sequence_length,
        precision=job.training.precision,
        checkpointing=plan.activation_checkpointing,
        attention=attention or job.training.attention,
        optimizer=optimizer or job.training.optimizer,
        lora=job.training.lora,
        fused_loss=job.training.loss == "fused",
        device=device,
    )
    config = {**resolve_model_config(job.model), "use_cache": False}
    kind = DeviceKind.VIRTUAL if device == "cpu" else DeviceKind.CUDA
    buckets = bucket_elements_for(num_trained(config, choices), virtual=kind is DeviceKind.VIRTUAL)
    # From the second micro-batch on gradients of earlier ones are there; a third changes nothing.
    steps = 1 if by_torch else min(2, plan.accumulation_steps)
    plan = replace(plan, accumulation_steps=steps, bucket_elements=buckets)
    settings = None if by_torch else deepspeed_config(job, plan, kind)
    return TracedPlan(
        engine=_TORCH if by_torch else _DEEPSPEED,
        rank=rank,
        num_ranks=plan.dp,
        zero_stage=plan.zero_stage,
        micro_batch_size=plan.micro_batch_size,
        accumulation_steps=plan.accumulation_steps,
        activation_checkpointing=plan.activation_checkpointing,
        device=device,
        result=traced_run(config, choices, settings, num_ranks=plan.dp, rank=rank),
    )


def _check(job: TrainingJob, plan: ResourcePlan, rank: int) -> None:
    """Refuse what a trace would not follow. Raises PermanentError."""
    lora = job.training.lora
    if rank >= plan.dp:
        raise _refused(f"--rank {rank}", "ranks are counted from 0", f"Give one below {plan.dp}, or a larger --dp.")
    if plan.tp > 1:
        raise _refused(f"tensor parallel degree {plan.tp}", "a trace follows tensor parallel degree 1 only")
    if plan.offload_optimizer:
        raise _refused("optimizer offload", "a trace does not tell host memory from the card's")
    if plan.activation_checkpointing and job.training.checkpoint_every_layers > 1:
        raise _refused("training.checkpoint_every_layers", "a trace checkpoints each layer, or none")
    if job.training.optimizer == "adamw-8bit" or (lora is not None and lora.quantization != "none"):
        raise _refused("8-bit and 4-bit states", "their kernels have no rule for tensors without data")


def _refused(what: str, why: str, remedy: str = "Use `frenzy plan`.") -> PermanentError:
    detail = f"The trace refuses {what}: {why}."
    return PermanentError(Reason(code=ReasonCode.TRACE_UNSUPPORTED, detail=detail, remedy=remedy))


def _first_plan(job: TrainingJob, cluster: Path) -> ResourcePlan:
    """The plan that ranks first on ``cluster``. Raises PermanentError when none fits."""
    from frenzy.adapters.connection_settings import settings_at_hand
    from frenzy.offline import plan_offline

    settings = settings_at_hand()
    planned = plan_offline(job, settings, cluster, settings.memory_policy.value)
    show_note(planned.note)
    if planned.refusal is not None:
        raise PermanentError(planned.refusal)
    return planned.candidates[0].plan


def _smallest_plan(job: TrainingJob) -> ResourcePlan:
    """One rank, one sequence at a time. Its predictions are empty: the trace makes its own."""
    return ResourcePlan(
        gpu_type="any",
        num_gpus=1,
        dp=1,
        tp=1,
        zero_stage=1,
        micro_batch_size=1,
        accumulation_steps=1,
        activation_checkpointing=job.training.gradient_checkpointing == "on",
        memory=MemoryPrediction(peak_allocated_bytes=0, required_bytes=0, host_bytes=0, at=""),
        gpu_memory_bytes=0,
        step_time_s=0.0,
        samples_per_s=0.0,
        predicted_run_s=0.0,
    )


def _show(name: str, traced: TracedPlan) -> None:
    console, result = out(), traced.result
    console.print(
        f"{name}: {format_bytes(result.peak_bytes)} at the peak, in the {result.at}; "
        f"{format_bytes(result.resident_bytes)} between steps."
    )
    console.print(_what_was_traced(traced), style="dim")
    console.print()
    console.print(_moments(result))
    console.print()
    console.print(_parts(result))


def _what_was_traced(traced: TracedPlan) -> str:
    kernels = "CUDA's kernels and allocator" if traced.device == "cuda" else "the CPU's kernels"
    stage = (
        f"ZeRO stage {traced.zero_stage}, rank {traced.rank} of {traced.num_ranks}" if traced.zero_stage else "one card"
    )
    recomputed = ", activations recomputed" if traced.activation_checkpointing else ""
    return f"{traced.engine}, {stage}, micro-batch {traced.micro_batch_size}{recomputed}; modelled: {kernels}."


def _moments(result: TraceResult) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("point in time", "highest", "largest terms"):
        table.add_column(heading, justify="right" if heading == "highest" else "left")
    for each in result.by_moment:
        most = "; ".join(f"{part.name} {format_bytes(part.num_bytes)}" for part in each.by_category[:3])
        table.add_row(each.name, format_bytes(each.peak_bytes), most, style="bold" if each.name == result.at else "")
    return table


def _parts(result: TraceResult) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("at the peak")
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for each in result.by_category:
        table.add_row(each.name, format_bytes(each.num_bytes), f"{each.num_bytes / result.peak_bytes:.1%}")
    return table
