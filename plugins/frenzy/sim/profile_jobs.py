"""Jobs that name profiles: a CSV file with one job on each line.

    job,submit_s,profile,work_samples,duration,gpus,queue,team,priority,deadline_s,objective
    a,0,bert-large,1.2e6,,4,research,search,0,,
    b,60,resnet,,3600,2,research,vision,5,86400,cost

Either ``work_samples`` or ``duration``: seconds on the GPUs asked for, of the middle one of the
cluster's GPU types (``reference``). deadline_s counts as submit_s does, objective is time or cost. gpus and
all that follows it may be left out. Rows without a time of submission or without work, and jobs whose profile
has no plan that fits the empty cluster, are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from frenzy.core.values.cluster import Cluster
from frenzy.core.values.job import Objective
from frenzy.core.values.scheduling_facts import Elasticity, QueuedJob
from frenzy.sim.input_tables import Row, read_table
from frenzy.sim.profiles import profile_plans, read_profiles
from frenzy.sim.reference import Plans, asked_gpus, by_speed, reference_gpu_s

JOB_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "job": ("job", "job_name", "name"),
    "arrival": ("submit_s", "arrival_s", "submit_time", "time"),
    "profile": ("profile",),
    "work": ("work_samples", "work"),
    "duration": ("duration_s", "duration"),
    "gpus": ("gpus", "num_gpus"),
    "queue": ("queue",),
    "team": ("team",),
    "priority": ("priority",),
    "deadline": ("deadline_s", "deadline"),
    "objective": ("objective",),
}


def profile_jobs(
    jobs: Path, profiles: Path, cluster: Cluster, *, elasticity: Elasticity | None
) -> tuple[list[QueuedJob], Counter[str]]:
    """The jobs of the CSV file ``jobs`` in order of submission, and how many were left out, by reason.

    Plans are the same object for all jobs of a profile. elasticity: of each job, with the restart
    time of its profile; None for jobs that are never moved. Raises SpecError.
    """
    known = read_profiles(profiles)
    plans = {name: profile_plans(each, cluster) for name, each in known.items()}
    cheapest = {
        name: tuple(sorted(each, key=lambda plan: (plan.cost_order, plan.predicted_run_s)))
        for name, each in plans.items()
    }
    moves = {name: _with_restart(elasticity, each.restart_s) for name, each in known.items()}
    distance = by_speed(cluster)
    found: list[QueuedJob] = []
    left_out: Counter[str] = Counter()
    for row in read_table(jobs, JOB_COLUMNS, required=("arrival", "profile")):
        name = row.text("profile") or ""
        if name not in known:
            raise row.refusal("profile", f"one of {', '.join(known)}")
        job = _job(row, plans[name], moves[name], distance)
        if isinstance(job, QueuedJob):
            found.append(replace(job, plans=cheapest[name]) if job.objective is Objective.COST else job)
        else:
            left_out[job] += 1
    found.sort(key=lambda each: (each.submitted_s, each.run_key))
    return found, left_out


def _job(row: Row, plans: Plans, elasticity: Elasticity | None, distance: Mapping[str, int]) -> QueuedJob | str:
    """The job on ``row``, or why it is left out."""
    submitted_s, num_gpus = row.number("arrival"), row.whole("gpus")
    if submitted_s is None:
        return "no time of arrival"
    if not plans:
        return "no plan of its profile fits the cluster"
    work = _work(row, plans, num_gpus, distance)
    if not work:
        return "no work"
    return QueuedJob(
        run_key=f"job-{row.line - 1:05d}",
        job_name=row.text("job") or f"line-{row.line}",
        submitted_s=submitted_s,
        plans=plans,
        priority=_priority(row),
        queue=row.text("queue") or "default",
        team=row.text("team") or "default",
        work_left=work,
        asked_gpus=asked_gpus(plans, num_gpus) if num_gpus else None,
        elasticity=elasticity,
        deadline_s=row.number("deadline"),
        objective=_objective(row),
    )


def _objective(row: Row) -> Objective:
    text = row.text("objective") or Objective.TIME
    if text not in list(Objective):
        raise row.refusal("objective", f"one of {', '.join(Objective)}")
    return Objective(text)


def _work(row: Row, plans: Plans, num_gpus: int | None, distance: Mapping[str, int]) -> float | None:
    samples, duration_s = row.number("work"), row.number("duration")
    if samples or duration_s is None:
        return samples
    counted = num_gpus or 1
    return duration_s * counted / reference_gpu_s(plans, counted, distance)


def _priority(row: Row) -> int:
    """Unlike other numbers it may be below 0."""
    text = row.text("priority") or "0"
    if not text.lstrip("+-").isdecimal():
        raise row.refusal("priority", "a whole number")
    return int(text)


def _with_restart(elasticity: Elasticity | None, restart_s: float | None) -> Elasticity | None:
    if elasticity is None or restart_s is None:
        return elasticity
    return replace(elasticity, restart_s=restart_s)
