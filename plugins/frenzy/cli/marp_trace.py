"""``frenzy marp trace``: the memory of a step by running the real model class on tensors without data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from frenzy.cli.console import out, print_json
from frenzy.cli.spec_file import checked_spec
from frenzy.core.units import format_bytes

if TYPE_CHECKING:
    from frenzy.trainer.trace_moments import TraceResult


def trace(  # noqa: PLR0913  # one argument for each option of the command
    spec: Annotated[Path, typer.Argument(help="The job's YAML file; - reads it from standard input.")],
    micro_batch: Annotated[int, typer.Option(min=1, help="Sequences of a micro-batch.")] = 1,
    checkpointing: Annotated[bool, typer.Option(help="Recompute activations in the backward pass.")] = False,
    attention: Annotated[str, typer.Option(help="eager, sdpa or flash_attention_2.")] = "sdpa",
    optimizer: Annotated[str | None, typer.Option(help="adamw, adamw-fused or sgd; the job's by default.")] = None,
    device: Annotated[str, typer.Option(help="Whose kernels and allocator are modelled: cuda or cpu.")] = "cuda",
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Run two steps of the job's model without data or GPU, and report the memory held at each point in time."""
    from frenzy.adapters.model_config import resolve_model_config
    from frenzy.trainer.trace_step import TraceChoices, traced_run

    job = checked_spec(spec).job
    choices = TraceChoices(
        batch=micro_batch,
        sequence_length=job.data.sequence_length,
        precision=job.training.precision,
        checkpointing=checkpointing,
        attention=attention,
        optimizer=optimizer or job.training.optimizer,
        lora=job.training.lora,
        device=device,
    )
    result = traced_run({**resolve_model_config(job.model), "use_cache": False}, choices)
    if as_json:
        print_json(result)
    else:
        _show(job.name, result)
    return 0


def _show(name: str, result: TraceResult) -> None:
    console = out()
    console.print(_moments(name, result))
    console.print()
    console.print(_parts(result))


def _moments(name: str, result: TraceResult) -> Table:
    table = Table(title=f"{name}: {format_bytes(result.peak_bytes)} at the peak", title_justify="left", box=None)
    for heading in ("point in time", "highest", "most of it"):
        table.add_column(heading, justify="right" if heading == "highest" else "left")
    for each in result.by_moment:
        largest = each.by_category[0] if each.by_category else None
        most = f"{largest.name} ({format_bytes(largest.num_bytes)})" if largest else ""
        table.add_row(each.name, format_bytes(each.peak_bytes), most, style="bold" if each.name == result.at else "")
    return table


def _parts(result: TraceResult) -> Table:
    table = Table(title=f"At the peak, in the {result.at}", title_justify="left", box=None)
    table.add_column("what")
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for each in result.by_category:
        table.add_row(each.name, format_bytes(each.num_bytes), f"{each.num_bytes / result.peak_bytes:.1%}")
    return table
