"""The mix through a real Airflow with real workers, under one policy: what was measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.mix_jobs import SIZES, MixJob, spec
from tests.bench.mix_times import MeasuredJob, measured_attempt
from tests.e2e.walker import Walker
from tests.embedded_stack import Stack

from frenzy.core.runs.ledger import FINAL_STATES, JobState
from frenzy.core.runs.protocol import RunView
from frenzy.ports import RunStore, TelemetryCursor
from frenzy.wiring import run_store

MIN_RUN_S: Final = 20.0
_MIX_PATIENCE_S: Final = 1500.0
_WARM_UP_STEPS: Final = 12
NUM_TOGETHER: Final = 3
"""Small jobs that are triggered at once before the mix: as many as the laptop's cluster has types of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMix:
    """One policy. alone, together: small jobs that ran before the mix, one by one and at once."""

    policy: str
    alone: tuple[MeasuredJob, ...]
    together: tuple[MeasuredJob, ...]
    jobs: tuple[MeasuredJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Triggered:
    """One DAG run; at_s since the epoch."""

    dag_id: str
    run_id: str
    at_s: float


def run_mix(policy: str, jobs: Sequence[MixJob], corpus: Path, cluster: Path, home: Path) -> MeasuredMix:
    """All of ``jobs`` at their times, each a DAG, under ``policy``. Raises AssertionError unless all succeed."""
    env = {"FRENZY_CLUSTER": str(cluster), "FRENZY_POLICY": policy, "FRENZY_MIN_RUN_S": f"{MIN_RUN_S:g}"}
    with Stack.running(home, env=env) as stack:
        walker, store = Walker(stack, corpus), run_store(stack.settings)
        small = [walker.store(spec(f"warm-up-{size.name}", size, _WARM_UP_STEPS, corpus)) for size in SIZES[1:3]]
        alone = [run for dag_id in small for run in _before_the_mix(walker, store, [dag_id])]
        at_once = [small[index % len(small)] for index in range(NUM_TOGETHER)]
        together = _before_the_mix(walker, store, at_once)
        dags = [(job, walker.store(job.text)) for job in jobs]
        runs = _trigger_in_time(walker, dags)
        ended = [_measured(store, each, _ended(walker, each)) for each in runs]
    return MeasuredMix(policy=policy, alone=tuple(alone), together=tuple(together), jobs=tuple(ended))


def _before_the_mix(walker: Walker, store: RunStore, dag_ids: Sequence[str]) -> list[MeasuredJob]:
    """One run of each of ``dag_ids``, triggered at once; nothing else runs from their triggers to their DAGs' ends."""
    runs = [_trigger(walker, dag_id) for dag_id in dag_ids]
    return [_measured(store, run, walker.succeed(run.dag_id, run.run_id)) for run in runs]


def _trigger_in_time(walker: Walker, dags: Sequence[tuple[MixJob, str]]) -> list[_Triggered]:
    began, runs = time.monotonic(), []
    for job, dag_id in dags:
        time.sleep(max(0.0, began + job.at_s - time.monotonic()))
        runs.append(_trigger(walker, dag_id))
    return runs


def _trigger(walker: Walker, dag_id: str) -> _Triggered:
    at_s = time.time()
    return _Triggered(dag_id=dag_id, run_id=walker.trigger(dag_id), at_s=at_s)


def _ended(walker: Walker, run: _Triggered) -> RunView:
    def look() -> RunView | None:
        view = walker.view(run.dag_id, run.run_id)
        return view if view is not None and view.run.state in FINAL_STATES else None

    view = walker.eventually(f"the end of {run.dag_id}", look, _MIX_PATIENCE_S)
    assert view.run.state is JobState.SUCCEEDED, walker.summary()
    return view


def _measured(store: RunStore, run: _Triggered, view: RunView) -> MeasuredJob:
    found = []
    for attempt in view.attempts:
        page = store.telemetry(view.run.run_key, attempt.attempt, TelemetryCursor())
        found.append(measured_attempt(view, attempt, page.records))
    return MeasuredJob(name=view.run.job.name, triggered_s=run.at_s, attempts=tuple(found))
