"""A captured live queue as a scenario: what runs goes on, what waits waits, until all have ended."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from frenzy.core.runs.views import QueueSnapshot
from frenzy.core.scheduling import policy_named, with_queues
from frenzy.core.values.codec import loads
from frenzy.core.values.errors import ContractError, SpecError, Violation
from frenzy.core.values.scheduling_facts import RunningJob
from frenzy.sim.scenario_jobs import Scenario, SimJob, SimRunning
from frenzy.sim.schedulers import ProductScheduler


def read_snapshot(path: Path) -> QueueSnapshot:
    """What ``frenzy queue --snapshot`` wrote. Raises SpecError for no file, or one of another form or release."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        detail = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8 text"
        raise _refused(repr(str(path)), detail) from error
    try:
        return loads(QueueSnapshot, text)
    except ContractError as error:
        raise _refused(repr(str(path)), error.reason.detail) from error


def _refused(value: str, detail: str) -> SpecError:
    allowed = f"a file written by 'frenzy queue --snapshot' of this release ({detail})"
    return SpecError([Violation(path="--snapshot", value=value, allowed=allowed)])


def scenario_of(snapshot: QueueSnapshot) -> Scenario:
    """The scenario that begins with ``snapshot``. Waiting jobs have as much work left as is believed."""
    facts = snapshot.facts
    taken = datetime.fromtimestamp(snapshot.taken_s, UTC)
    return Scenario(
        name=f"snapshot of {taken:%Y-%m-%d %H:%M:%S} UTC",
        cluster=facts.cluster,
        jobs=tuple(SimJob(job=job, work=job.work_left) for job in facts.queued),
        running=tuple(SimRunning(job=job, work=_work(job)) for job in facts.running),
        start_s=snapshot.taken_s,
    )


def product_scheduler(snapshot: QueueSnapshot) -> ProductScheduler:
    """What decided when ``snapshot`` was taken. Raises SpecError for a policy this release does not know."""
    policy = policy_named(snapshot.policy, cpus_per_gpu=snapshot.cpus_per_gpu)
    return ProductScheduler(with_queues(policy, snapshot.queues))


def _work(job: RunningJob) -> float:
    """From its first step on: up to its expected end, which measured step times tell better than the plan."""
    since_s = job.started_s if job.ready_s is None else job.ready_s
    if job.expected_end_s is None:
        return job.work_left
    return max(0.0, job.expected_end_s - since_s) / job.plan.predicted_run_s
