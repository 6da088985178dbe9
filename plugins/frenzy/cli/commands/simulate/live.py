"""``frenzy simulate`` on a live queue: when its jobs start and end, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frenzy.adapters.spec.queue_file import idle_quotas, load_queue_rules
from frenzy.cli.commands.simulate.output import check_folder, tell
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.tables import Grid, grid
from frenzy.sim.answer import Answer, answer, side_by_side
from frenzy.sim.cluster_changes import Changed, what_if
from frenzy.sim.registry import scheduler_named
from frenzy.sim.reports.figures import TimeUnit, unit_for
from frenzy.sim.reports.report import Report, write_report
from frenzy.sim.results import JobOutcome, SimResult
from frenzy.sim.snapshot import product_scheduler, read_snapshot, scenario_of

if TYPE_CHECKING:
    from frenzy.core.runs.views import QueueSnapshot
    from frenzy.sim.schedulers import Scheduler
    from frenzy.sim.summaries import Summary

_MOST_JOBS_SHOWN = 60


def live_snapshot() -> QueueSnapshot:
    """The queue of the server as it is now."""
    from frenzy.api import endpoints
    from frenzy.cli.commands.server import connect

    with connect() as api:
        return api.ask(endpoints.queue_snapshot())


def simulate_snapshot(
    source: Path | None,
    output: Path | None,
    *,
    changes: Sequence[str],
    policies: Sequence[str],
    queues: Path | None,
    as_json: bool,
) -> int:
    """Play a snapshot to its end, as it is or changed; the exit status.

    source: a file; None for the server's queue. policies: by name; none for the queue's own. queues: a queue file in
    place of the snapshot's shares and quotas.
    The output holds no CPU times: the same snapshot gives the same bytes.
    """
    check_folder(output)
    snapshot = live_snapshot() if source is None else read_snapshot(source)
    if queues is not None:
        snapshot = replace(snapshot, queues=load_queue_rules(queues))
    change = ", ".join(changes)
    changed = what_if(snapshot, change) if change else Changed(snapshot=snapshot)
    if queues is not None:
        idle = idle_quotas(snapshot.queues, changed.snapshot.facts.cluster, snapshot.facts.cluster)
        changed = replace(changed, notes=(*changed.notes, *idle))
    named = [scheduler_named(name, snapshot.queues) for name in dict.fromkeys(policies)]
    schedulers: list[Scheduler] = [*named] or [product_scheduler(snapshot)]
    if change:
        _tell_what_if(snapshot, change, changed, schedulers, output, as_json=as_json)
        return 0
    results = _played([(snapshot, each) for each in schedulers])
    report = _report(snapshot, results, {}, changed.notes)
    tell(report, output, as_json=as_json)
    if not as_json:
        for each in results:
            out().print()
            out().print(jobs_table(each, snapshot.taken_s))
    return 0


def _tell_what_if(
    snapshot: QueueSnapshot,
    change: str,
    changed: Changed,
    schedulers: Sequence[Scheduler],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """One answer for each of ``schedulers``; as JSON a list where there are several."""
    played = _played([(each, scheduler) for scheduler in schedulers for each in (snapshot, changed.snapshot)])
    pairs = list(zip(played[::2], played[1::2], strict=True))
    answers = [answer(snapshot, change, changed, before, after) for before, after in pairs]
    if as_json:
        print_json(answers[0] if len(answers) == 1 else answers)
    else:
        for found in answers:
            _show(found)
    if output is not None:
        results = [each for pair in pairs for each in side_by_side(*pair)]
        report = _report(snapshot, results, {"what if": change}, changed.notes)
        err().print(f"Report: {write_report(report, output)}", soft_wrap=True)


def _played(runs: Sequence[tuple[QueueSnapshot, Scheduler]]) -> list[SimResult]:
    from frenzy.cli.commands.simulate.progress_bar import Runs

    with Runs(err(), len(runs)) as running:
        return [running.run(scenario_of(snapshot), scheduler) for snapshot, scheduler in runs]


def _report(
    snapshot: QueueSnapshot, results: Sequence[SimResult], settings: dict[str, str], notes: Sequence[str] = ()
) -> Report:
    facts = snapshot.facts
    shown = {
        "snapshot": results[0].scenario,
        "jobs": f"{len(facts.queued)} waiting, {len(facts.running)} running",
        "policy of the queue": snapshot.policy,
        **settings,
    }
    return Report(title="Simulated queue", settings=shown, results=results, with_cpu_times=False, notes=tuple(notes))


def jobs_table(result: SimResult, now_s: float) -> Grid:
    """When each job starts and ends, counted from the snapshot."""
    jobs = sorted(result.jobs, key=lambda job: (float("inf") if job.end_s is None else job.end_s, job.run_key))
    unit = unit_for(max((job.end_s - now_s for job in jobs if job.end_s is not None), default=0.0))
    headings = ["job", "run", f"starts,_{unit.name}", f"ends,_{unit.name}", "restarts"]
    rows = [_job_row(job, now_s, unit) for job in jobs[:_MOST_JOBS_SHOWN]]
    return grid(_jobs_title(result.policy, len(rows), len(jobs)), headings, rows, right=" ".join(headings[2:]))


def _job_row(job: JobOutcome, now_s: float, unit: TimeUnit) -> list[str]:
    start_s = None if job.first_start_s is None else job.first_start_s - now_s
    end_s = None if job.end_s is None else job.end_s - now_s
    return [job.job_name, job.run_key, _start(start_s, unit), _end(end_s, unit), str(job.num_restarts)]


def _show(found: Answer) -> None:
    unit = unit_for(max((each.end_before_s or 0.0 for each in found.jobs), default=0.0))
    headings = [
        "job",
        "run",
        f"starts,_{unit.name}",
        f"then,_{unit.name}",
        f"ends,_{unit.name}",
        f"ends_then,_{unit.name}",
        "change",
    ]
    rows = [
        [
            each.job_name,
            each.run_key,
            _start(each.start_before_s, unit),
            _start(each.start_after_s, unit),
            _end(each.end_before_s, unit),
            _end(each.end_after_s, unit),
            _difference(each.end_before_s, each.end_after_s, unit),
        ]
        for each in found.jobs[:_MOST_JOBS_SHOWN]
    ]
    title = f"What if: {found.change} ({_jobs_title(found.policy, len(rows), len(found.jobs))})"
    console = out()
    console.print(grid(title, headings, rows, right=" ".join(headings[2:])))
    console.print()
    for line in _sums(found, unit):
        console.print(line, soft_wrap=True)
    for note in found.notes:
        console.print(note, style="yellow", soft_wrap=True)


def _sums(found: Answer, unit: TimeUnit) -> list[str]:
    same = len(found.jobs) - found.num_sooner - found.num_later
    return [
        f"Jobs that end sooner: {found.num_sooner}, later: {found.num_later}, when they would have: {same}.",
        *_averages(found, unit),
        f"Jobs that end: {_ended(found.before, unit)}; then {_ended(found.after, unit)}.",
    ]


def _averages(found: Answer, unit: TimeUnit) -> list[str]:
    means = found.means
    if not means.num_jobs:
        return ["No job ends both times, so there are no averages to compare."]
    of = "" if means.num_jobs == len(found.jobs) else f" of the {means.num_jobs} that end both times"
    jct = f"{_in(means.jct_before_s, unit)}, then {_in(means.jct_after_s, unit)}"
    return [
        f"Average time from submission to end{of}: {jct}.",
        f"Average wait{of}: {_in(means.wait_before_s, unit)}, then {_in(means.wait_after_s, unit)}.",
    ]


def _ended(summary: Summary, unit: TimeUnit) -> str:
    num_ended = summary.num_jobs - summary.num_never_ended
    if not num_ended:
        return f"none of {summary.num_jobs}"
    return f"{num_ended} of {summary.num_jobs}, the last after {_in(summary.makespan_s, unit)}"


def _in(seconds: float, unit: TimeUnit) -> str:
    return f"{seconds / unit.seconds:.2f} {unit.name}"


def _start(seconds: float | None, unit: TimeUnit) -> str:
    if seconds is None:
        return "never"
    return "runs" if seconds < 0 else f"{seconds / unit.seconds:.2f}"


def _end(seconds: float | None, unit: TimeUnit) -> str:
    return "never" if seconds is None else f"{seconds / unit.seconds:.2f}"


def _difference(before_s: float | None, after_s: float | None, unit: TimeUnit) -> str:
    if before_s is None or after_s is None:
        return "" if before_s is after_s else "ends at all" if before_s is None else "never ends"
    change_s = after_s - before_s
    if abs(change_s) < 1.0:
        return "same"
    return f"{abs(change_s) / unit.seconds:.2f} {'sooner' if change_s < 0 else 'later'}"


def _jobs_title(policy: str, num_shown: int, num_jobs: int) -> str:
    return policy if num_shown == num_jobs else f"{policy}; the first {num_shown} of {num_jobs} jobs to end"
