"""``frenzy plan``: what MARP would do with a job on a cluster, without Airflow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frenzy.cli.commands.spec_file import checked_spec
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.failures import FAILED, show_reason
from frenzy.cli.render.tables import candidates_table, memory_breakdown
from frenzy.core.planning.selection import fitting
from frenzy.core.values.errors import FrenzyError, Reason
from frenzy.core.values.plan import Candidate
from frenzy.core.values.units import counted

if TYPE_CHECKING:
    from frenzy.core.runs.ledger import DataFacts
    from frenzy.core.values.cluster import Cluster
    from frenzy.core.values.job import TrainingJob
    from frenzy.settings import Settings

# Steps that predicted times stand for where their number is not known.
_ASSUMED_STEPS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePlan:
    """MARP's answer: ``candidates`` as ranked; ``refusal`` when none fits, with its remedy."""

    cluster_file: str
    policy: str
    total_steps: int
    candidates: tuple[Candidate, ...]
    refusal: Reason | None


def plan(
    spec: Annotated[Path, typer.Argument(help="The job's YAML file; - reads it from standard input.")],
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; the settings' by default.")] = None,
    policy: Annotated[str | None, typer.Option(help="Memory model: closed-form or paper.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Plans that fit to list, best first.")] = 10,
    everything: Annotated[bool, typer.Option("--all", help="List every plan and every refusal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
    manifest: Annotated[bool, typer.Option("--manifest", help="Print the pods of the chosen plan as YAML.")] = False,
) -> int:
    """List the plans for a job with their memory, time, cost, and the reason of each rank or refusal.

    Needs no Airflow and starts nothing. Exit status 1 when no plan fits.
    """
    from frenzy.adapters.connection_settings import settings_at_hand

    job = checked_spec(spec).job
    settings = settings_at_hand()
    told = plan_offline(job, settings, cluster or settings.cluster_file, policy or settings.memory_policy.value)
    if manifest:
        return show_manifest(job, settings, told)
    if as_json:
        print_json(told)
    else:
        show_plan(job.name, told, top=10**6 if everything else top)
    return 0 if told.refusal is None else FAILED


def plan_offline(job: TrainingJob, settings: Settings, cluster_file: Path, policy: str) -> OfflinePlan:
    """The plans of ``job`` on the cluster in ``cluster_file``. Raises PermanentError for a bad file or model."""
    from frenzy.adapters.calibration import default_calibration
    from frenzy.adapters.model_config import resolve_model_config
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.core.models.shape import model_shape
    from frenzy.core.planning.marp import PlanRequest, plan_candidates, smallest_remedy

    there: Cluster = load_cluster(cluster_file)
    shape = model_shape(resolve_model_config(job.model, cache_folder=settings.cache_folder))
    steps = _steps(job)
    request = PlanRequest(job=job, shape=shape, total_steps=steps)
    calibration = default_calibration()
    candidates = plan_candidates(request, there, calibration, policy)
    fits = any(each.feasible for each in candidates)
    return OfflinePlan(
        cluster_file=str(cluster_file),
        policy=policy,
        total_steps=steps,
        candidates=candidates,
        refusal=None if fits else smallest_remedy(request, there, calibration, policy),
    )


def show_manifest(job: TrainingJob, settings: Settings, told: OfflinePlan) -> int:
    """Print what would be sent to an empty cluster, and nothing else; the exit status."""
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.cli.commands.plan_manifest import manifest_text

    if told.refusal is not None:
        show_reason(err(), told.refusal)
        return FAILED
    plans = [each.plan for each in told.candidates if each.feasible]
    typer.echo(manifest_text(job, plans, load_cluster(Path(told.cluster_file)), settings), nl=False)
    return 0


def show_plan(name: str, told: OfflinePlan, *, top: int) -> None:
    """The plans that fit, the best one's memory by term, and what was refused and why."""
    console = out()
    fits = [each for each in told.candidates if each.feasible]
    refused = [each for each in told.candidates if not each.feasible]
    title = f"{name} on {told.cluster_file}: {fitting(len(fits))} ({told.policy}, {counted(told.total_steps, 'step')})"
    if fits:
        console.print(candidates_table(title, fits[:top]))
        _say_how_many_more(len(fits) - top)
        console.print()
        console.print(memory_breakdown(fits[0].plan))
    if refused:
        console.print()
        console.print(candidates_table(f"{len(refused)} refused, with the reason of each", islice(refused, top)))
        _say_how_many_more(len(refused) - top)
    if told.refusal is not None:
        console.print()
        show_reason(err(), told.refusal)


def _say_how_many_more(count: int) -> None:
    if count > 0:
        out().print(f"... and {count} more; --all lists them.", style="dim")


def _steps(job: TrainingJob) -> int:
    """Optimizer steps of the whole job, as far as they can be known here."""
    from frenzy.core.runs.ledger import DataFacts
    from frenzy.core.runs.steps import total_steps

    if job.training.max_steps is not None:
        return job.training.max_steps
    return total_steps(job, _facts(job) or DataFacts()) or _ASSUMED_STEPS


def _facts(job: TrainingJob) -> DataFacts | None:
    """What the data say of their size; None, with a note, when they cannot be read from here."""
    from frenzy.trainer.data.data_facts import data_facts

    try:
        return data_facts(job)
    except FrenzyError as error:
        err().print(
            f"Note: {error.reason.sentence} Times are for {_ASSUMED_STEPS} steps.", style="yellow", soft_wrap=True
        )
        return None
