"""The mix through a real Airflow with real workers, under one policy: what was measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.mix_jobs import SIZES, MixJob, spec
from tests.e2e.walker import Walker

from frenzy.cli.stack import Stack
from frenzy.core.ledger import FINAL_STATES, Attempt, JobState
from frenzy.core.protocol import RunView

MIN_RUN_S: Final = 20.0
_MIX_PATIENCE_S: Final = 1500.0
_WARM_UP_STEPS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """One job as it went. queue_s: registered to its first placement; jct_s: to the end of its workers.

    submitted_s: since the epoch. plans, step_errors: of its attempts; measured over predicted step time, less one.
    """

    name: str
    submitted_s: float
    queue_s: float
    jct_s: float
    plans: tuple[str, ...]
    step_errors: tuple[float, ...]

    @property
    def num_moves(self) -> int:
        return len(self.plans) - 1

    @property
    def end_s(self) -> float:
        return self.submitted_s + self.jct_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMix:
    """One policy. frame_s: what an attempt takes beside its steps, as a job alone showed before the mix."""

    policy: str
    frame_s: float
    jobs: tuple[MeasuredJob, ...]


def run_mix(policy: str, jobs: Sequence[MixJob], corpus: Path, cluster: Path, home: Path) -> MeasuredMix:
    """All of ``jobs`` at their times, each a DAG, under ``policy``. Raises AssertionError unless all succeed."""
    env = {"FRENZY_CLUSTER": str(cluster), "FRENZY_POLICY": policy, "FRENZY_MIN_RUN_S": f"{MIN_RUN_S:g}"}
    with Stack.running(home, env=env) as stack:
        walker = Walker(stack, corpus)
        frame_s = _frame_s(walker, corpus)
        dags = [(job, walker.store(job.text)) for job in jobs]
        runs = _trigger_in_time(walker, dags)
        views = [_ended(walker, dag_id, run_id) for dag_id, run_id in runs]
    return MeasuredMix(policy=policy, frame_s=frame_s, jobs=tuple(_measured(view) for view in views))


def _frame_s(walker: Walker, corpus: Path) -> float:
    """From the grant of GPUs to their return, less the steps: the mean of two small jobs, each alone."""
    found = []
    for size in SIZES[1:3]:
        dag_id = walker.store(spec(f"warm-up-{size.name}", size, _WARM_UP_STEPS, corpus))
        view = walker.succeed(dag_id, walker.trigger(dag_id))
        attempt = view.attempts[-1]
        assert attempt.ended_s is not None and attempt.step_time_s is not None
        found.append(attempt.ended_s - attempt.created_s - attempt.step_time_s * attempt.last_step)
    return sum(found) / len(found)


def _trigger_in_time(walker: Walker, dags: Sequence[tuple[MixJob, str]]) -> list[tuple[str, str]]:
    began, runs = time.monotonic(), []
    for job, dag_id in dags:
        time.sleep(max(0.0, began + job.at_s - time.monotonic()))
        runs.append((dag_id, walker.trigger(dag_id)))
    return runs


def _ended(walker: Walker, dag_id: str, run_id: str) -> RunView:
    def look() -> RunView | None:
        view = walker.view(dag_id, run_id)
        return view if view is not None and view.run.state in FINAL_STATES else None

    view = walker.eventually(f"the end of {dag_id}", look, _MIX_PATIENCE_S)
    assert view.run.state is JobState.SUCCEEDED, walker.summary()
    return view


def _measured(view: RunView) -> MeasuredJob:
    run, attempts = view.run, view.attempts
    ends = [each.ended_s for each in attempts if each.ended_s is not None]
    return MeasuredJob(
        name=run.job.name,
        submitted_s=run.created_s,
        queue_s=attempts[0].created_s - run.created_s,
        jct_s=max(ends) - run.created_s,
        plans=tuple(each.plan.plan_id for each in attempts),
        step_errors=tuple(error for each in attempts if (error := _step_error(each, run.total_steps)) is not None),
    )


def _step_error(attempt: Attempt, total_steps: int | None) -> float | None:
    if attempt.step_time_s is None or not total_steps:
        return None
    left = total_steps - (attempt.next_attempt.checkpoint_step or 0)
    return attempt.step_time_s * left / attempt.plan.predicted_run_s - 1
