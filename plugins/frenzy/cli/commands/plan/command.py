"""``frenzy plan``: what MARP would do with a job on a cluster, without Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frenzy.adapters.spec.spec_file import checked_spec
from frenzy.cli.commands.plan.cluster_plans import show_plan
from frenzy.cli.commands.plan.tracing import TraceProgress
from frenzy.cli.render.console import err, out, print_json, show_note
from frenzy.cli.render.error_text import FAILED, REFUSED, show_reason
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

if TYPE_CHECKING:
    from frenzy.core.values.job import TrainingJob
    from frenzy.offline import FitAnswer, OfflinePlan
    from frenzy.settings import Settings


def plan(
    spec: Annotated[Path, typer.Argument(help="The job's YAML file; - reads it from standard input.")],
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; the settings' by default.")] = None,
    policy: Annotated[str | None, typer.Option(help="Memory model: closed-form or paper.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Plans that fit to list, best first.")] = 10,
    everything: Annotated[
        bool, typer.Option("--all", help="List every plan, also those that others beat, and every refusal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
    manifest: Annotated[bool, typer.Option("--manifest", help="Print the pods of the chosen plan as YAML.")] = False,
    fit: Annotated[
        str | None,
        typer.Option(metavar="CARDS", help="How it would fit these cards, such as 1xRTX4090, or in place of a plan."),
    ] = None,
) -> int:
    """List the plans for a job with their memory, time, cost, and the reason of each rank or refusal.

    Needs no Airflow and starts nothing. Exit status 1 when no plan fits, 2 when a run would refuse what can be read of
    its data.
    """
    from frenzy.adapters.connection_settings import settings_at_hand
    from frenzy.cli.commands.plan.fit import show_fit
    from frenzy.offline import fit_offline, plan_offline

    others = {"--manifest prints the pods of a plan": manifest, "--all lists the plans": everything}
    for what in (each for each, asked in others.items() if asked and fit is not None):
        detail = f"{what} on the cluster; --fit plans for cards that it need not have."
        raise PermanentError(Reason(code=ReasonCode.BAD_CONFIG_OR_DATA, detail=detail, remedy="Leave one of them out."))
    job = checked_spec(spec).job
    settings = settings_at_hand()
    where, model = cluster or settings.cluster_file, policy or settings.memory_policy.value
    answer: FitAnswer | None = None
    with TraceProgress(job) as progress:
        if fit is not None:
            answer = fit_offline(job, settings, cluster, fit, model, told=progress.told)
        else:
            planned = plan_offline(job, settings, where, model, every_plan=everything, told=progress.told)
    found = answer or planned
    if found.data_refusal is not None:
        show_reason(err(), found.data_refusal)
    show_note(found.note)
    if found.model is not None and not (manifest or as_json):
        out().print(f"Model: {found.model}", soft_wrap=True)
    if manifest:
        show_manifest(job, settings, planned)
    elif as_json:
        print_json(found)
    elif answer is not None:
        show_fit(job, answer, top=top)
    else:
        show_plan(job.name, planned, top=None if everything else top)
    if found.data_refusal is not None:
        return REFUSED
    return 0 if found.fits else FAILED


def show_manifest(job: TrainingJob, settings: Settings, planned: OfflinePlan) -> None:
    """Print what would be sent to an empty cluster, and nothing else."""
    from frenzy.adapters.spec.cluster_file import load_cluster
    from frenzy.cli.commands.plan.manifest import manifest_text

    if planned.refusal is not None:
        show_reason(err(), planned.refusal)
        return
    plans = [each.plan for each in planned.candidates if each.feasible]
    typer.echo(manifest_text(job, plans, load_cluster(Path(planned.cluster_file)), settings), nl=False)
