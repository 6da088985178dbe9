"""``frenzy simulate``: policies on recorded arrivals, or on the queue as it is, without Airflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frenzy.cli.render.console import err
from frenzy.cli.render.error_text import FAILED
from frenzy.core.values.errors import SpecError, Violation
from frenzy.core.values.queue_rules import NO_RULES, QueueRules

if TYPE_CHECKING:
    from frenzy.sim.results import SimResult
    from frenzy.sim.workloads import Workload, WorkloadSpec

DEFAULT_TRACE: Final = "philly-160-1"
DEFAULT_CLUSTER: Final = "44"
DEFAULT_POLICIES: Final = ("has", "frenzy-paper")
# A snapshot holds its cluster and its jobs; these would make others.
_OF_A_WORKLOAD: Final = (
    "profiles",
    "cluster",
    "seed",
    "load",
    "first",
    "rigid",
    "estimate_sigma",
    "misprediction",
    "failures",
    "repair",
    "start_overhead",
)


def simulate(  # noqa: PLR0913  # one argument for each option of the command
    context: typer.Context,
    trace: Annotated[
        list[str] | None, typer.Option(help="Arrivals: a trace by name or a CSV file; may be repeated.")
    ] = None,
    jobs: Annotated[
        list[Path] | None, typer.Option(help="Jobs that name profiles, a CSV file, instead of a trace.")
    ] = None,
    profiles: Annotated[Path | None, typer.Option(help="Profile file: throughput by GPU type and count.")] = None,
    cluster: Annotated[
        str, typer.Option(help="44, 64, 288, 6212, a cluster file, or a CSV file of nodes.")
    ] = DEFAULT_CLUSTER,
    policy: Annotated[list[str] | None, typer.Option(help="Policy by name; may be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of the generated jobs; may be repeated.")] = None,
    load: Annotated[float | None, typer.Option(min=1e-6, help="Divide the times of arrival by this.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Only so many jobs from the trace's beginning.")] = None,
    rigid: Annotated[bool, typer.Option("--rigid", help="No job is ever moved.")] = False,
    estimate_sigma: Annotated[float, typer.Option(min=0, help="Believe work times exp(N(0, sigma)).")] = 0.0,
    misprediction: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the jobs that need more memory than predicted.")
    ] = 0.0,
    failures: Annotated[
        float | None, typer.Option(min=1e-3, help="Nodes fail: mean hours from one failure of a node to its next.")
    ] = None,
    repair: Annotated[float, typer.Option(min=1e-3, help="Hours a failed node is away.")] = 1.0,
    start_overhead: Annotated[
        float, typer.Option(min=0, help="Seconds at least from a job's GPUs to its next step.")
    ] = 0.0,
    queues: Annotated[
        Path | None, typer.Option(help="Queue file: shares of queues, quotas; instead of those of a snapshot.")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Go on from this file of 'frenzy queue --snapshot' instead of a trace.")
    ] = None,
    from_live: Annotated[bool, typer.Option("--from-live", help="Go on from the server's queue as it is now.")] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(help="With a snapshot: 'add 4 L40S', 'remove 2 A100-40', 'drain NODE', 'undrain NODE'."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for CSV, JSON, pictures and the HTML report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Simulate policies on recorded arrivals; print their figures, and write a report.

    Starts nothing and needs no Airflow. The same options give the same result, but for CPU times.
    """
    if snapshot is not None or from_live:
        from frenzy.cli.commands.simulate.live import simulate_snapshot

        _only_one_source(trace, jobs, snapshot, from_live=from_live)
        _not_with_a_snapshot(context)
        return simulate_snapshot(
            snapshot, output, changes=what_if or (), policies=policy or (), queues=queues, as_json=as_json
        )
    _only_with_a_snapshot(what_if)

    from frenzy.sim.disturbances import Disturbances
    from frenzy.sim.workloads import ELASTIC, WorkloadSpec

    arrivals = _arrivals(trace, jobs, profiles)
    spec = WorkloadSpec(
        trace=arrivals[0],
        cluster=cluster,
        load=load,
        num_jobs=first,
        elasticity=None if rigid else ELASTIC,
        profiles=None if profiles is None else str(profiles),
        queues=_rules(queues),
        start_overhead_s=start_overhead,
        disturbances=Disturbances(
            estimate_sigma=estimate_sigma,
            memory_error_share=misprediction,
            node_mtbf_hours=failures,
            node_repair_hours=repair,
        ),
    )
    # Each once: a scenario that is played again tells nothing new, and would count as another one.
    seeds = list(dict.fromkeys(seed or [0]))
    specs = [replace(spec, trace=name, seed=number) for name in dict.fromkeys(arrivals) for number in seeds]
    return simulate_workloads(specs, tuple(dict.fromkeys(policy or DEFAULT_POLICIES)), output, as_json=as_json)


def _only_with_a_snapshot(what_if: list[str] | None) -> None:
    if what_if:
        allowed = "given with --from-live or --snapshot FILE"
        raise SpecError([Violation(path="--what-if", value=repr(what_if[0]), allowed=allowed)])


def _not_with_a_snapshot(context: typer.Context) -> None:
    """Refuse options that would have no effect."""
    sources = {name: context.get_parameter_source(name) for name in _OF_A_WORKLOAD}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        allowed = "only without --from-live and --snapshot; --what-if changes a snapshot's cluster"
        names = [f"--{name.replace('_', '-')}" for name in given]
        raise SpecError(Violation(path=name, value="given", allowed=allowed) for name in names)


def _only_one_source(
    trace: list[str] | None, jobs: list[Path] | None, snapshot: Path | None, *, from_live: bool
) -> None:
    given = {"--trace": trace, "--jobs": jobs, "--snapshot": snapshot, "--from-live": from_live}
    names = [name for name, value in given.items() if value]
    if len(names) > 1:
        allowed = f"only one of {', '.join(given)}"
        raise SpecError([Violation(path=names[0], value=f"with {' and '.join(names[1:])}", allowed=allowed)])


def _arrivals(trace: list[str] | None, jobs: list[Path] | None, profiles: Path | None) -> list[str]:
    """Traces, or files of jobs, which come with their profiles."""
    if (jobs is None) != (profiles is None):
        path, other = ("--jobs", "--profiles") if jobs else ("--profiles", "--jobs")
        raise SpecError([Violation(path=path, value=f"without {other}", allowed="both or neither")])
    _only_one_source(trace, jobs, None, from_live=False)
    return [str(each) for each in jobs] if jobs else trace or [DEFAULT_TRACE]


def _rules(queues: Path | None) -> QueueRules:
    from frenzy.adapters.spec.queue_file import load_queue_rules

    return NO_RULES if queues is None else load_queue_rules(queues)


def simulate_workloads(
    specs: Sequence[WorkloadSpec], policies: Sequence[str], output: Path | None, *, as_json: bool
) -> int:
    """Every spec under every policy; the exit status."""
    from frenzy.cli.commands.simulate.output import check_folder, tell
    from frenzy.sim.engine import SimulationError
    from frenzy.sim.reports.report import Report

    check_folder(output)
    notes = _without_queues(specs[0], policies)
    try:
        results = list(_results(specs, policies, notes))
    except SimulationError as error:
        err().print(f"The policy asked for what cannot be: {error}.", style="bold red", soft_wrap=True)
        return FAILED
    report = Report(
        title="Simulated scheduling", settings=_settings(specs, policies), results=results, notes=tuple(notes)
    )
    tell(report, output, as_json=as_json)
    return 0


def _results(specs: Sequence[WorkloadSpec], policies: Sequence[str], notes: list[str]) -> Iterator[SimResult]:
    """Workloads are made one at a time: a large one takes memory."""
    from frenzy.adapters.spec.queue_file import idle_quotas
    from frenzy.cli.commands.simulate.progress_bar import Runs
    from frenzy.sim.registry import scheduler_named
    from frenzy.sim.workloads import make_workload

    for name in policies:
        scheduler_named(name)
    with Runs(err(), len(specs) * len(policies)) as runs:
        for spec in specs:
            workload = make_workload(spec)
            if spec is specs[0]:  # all are played on one cluster
                notes += idle_quotas(spec.queues, workload.scenario.cluster)
            if not workload.scenario.jobs:
                raise _nothing_to_simulate(spec, workload)
            notes += _left_out(spec.name, workload.left_out)
            notes += _unlimited(spec.name, workload.num_unlimited)
            for name in policies:
                yield runs.run(workload.scenario, scheduler_named(name, spec.queues))


def _without_queues(spec: WorkloadSpec, policies: Sequence[str]) -> list[str]:
    from frenzy.sim.registry import keeps_queues

    names = [each for each in policies if not keeps_queues(each)]
    return [f"Shares and quotas mean nothing to {', '.join(names)}."] if spec.queues and names else []


def _left_out(name: str, left_out: Mapping[str, int]) -> list[str]:
    if not left_out:
        return []
    return [f"{name}: rows of the trace left out, with the reason: {_counts(left_out)}."]


def _unlimited(name: str, num_jobs: int) -> list[str]:
    why = "for these jobs the trace names only GPU types that the cluster does not have; they may use all it has"
    return [f"{name}: {why}: {num_jobs}."] if num_jobs else []


def _counts(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{count}: {why}" for why, count in left_out.items())


def _nothing_to_simulate(spec: WorkloadSpec, workload: Workload) -> SpecError:
    """Figures of no job would all be 0, and look like the best of results."""
    from frenzy.core.capacity.cluster_capacity import Capacity

    ready = Capacity.of(workload.scenario.cluster).num_gpus
    gpus = ", ".join(f"{count} {name}" for name, count in ready.items() if count) or "no GPU on a ready node"
    why = f"rows left out: {_counts(workload.left_out)}" if workload.left_out else "the file has no job"
    allowed = f"at least one job that can run on cluster {spec.cluster}, which has {gpus}"
    return SpecError([Violation(path=spec.trace, value=why, allowed=allowed)])


def _settings(specs: Sequence[WorkloadSpec], policies: Sequence[str]) -> dict[str, str]:
    """What was simulated, in words."""
    spec = specs[0]
    disturbances = spec.disturbances
    traces = dict.fromkeys(each.trace for each in specs)
    seeds = dict.fromkeys(str(each.seed) for each in specs)
    shown = {
        "traces": ", ".join(traces),
        "cluster": spec.cluster,
        "policies": ", ".join(policies),
        "seeds": ", ".join(seeds),
        "times of arrival": "as recorded" if spec.load is None else f"divided by {spec.load:g}",
        "estimates of work": _sigma(disturbances.estimate_sigma),
        "memory": f"{disturbances.memory_error_share:.0%} of the jobs need more than predicted",
        "failures": "none",
    }
    if spec.start_overhead_s:
        shown["every start takes at least"] = f"{spec.start_overhead_s:g} s"
    if spec.queues:
        shown["queues"] = ", ".join(f"{each.name} {each.weight:g}" for each in spec.queues.queues) or "quotas only"
    if disturbances.node_mtbf_hours is not None:
        mtbf, repair = disturbances.node_mtbf_hours, disturbances.node_repair_hours
        shown["failures"] = f"each node every {mtbf:g} h on average, for {repair:g} h"
    return shown


def _sigma(sigma: float) -> str:
    return f"wrong by exp(N(0, {sigma:g}))" if sigma else "right"
