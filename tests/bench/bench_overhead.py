"""What Frenzy adds before the workers start: against a bare Airflow chain of as many tasks and deferrals.

In one run, on one warm Airflow, turns alternate. Measured is the time from the trigger call to the
start of a process by the third task: for Frenzy profile, place and launch, for the bare chain
three tasks that do nothing. Parsing and the trainer's imports are outside by construction. Each turn begins after
a random part of a second: an idle scheduler looks for new runs once in each, and how long one waits for that would
otherwise depend on when the turn before it ended.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.bench.report import figure, publish
from tests.e2e.walker import Walker, job_text, write_cluster, write_corpus
from tests.embedded_stack import Stack

from frenzy.core.runs.ledger import FINAL_STATES

NUM_TURNS: Final = 20
RATIO_GOAL: Final = 1.3
BARE_DAG: Final = '''"""Three tasks, the third starts a process and defers: the bare frame of a training run."""

from airflow.sdk import DAG, BaseOperator, task


class StartProcess(BaseOperator):
    def execute(self, context):
        import subprocess, sys, time
        from datetime import timedelta
        from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

        subprocess.Popen([sys.executable, "-c", "pass"], start_new_session=True)
        context["ti"].xcom_push(key="started_s", value=time.time())
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=0.2)), method_name="done")

    def done(self, context, event):
        pass


with DAG("bare_chain", schedule=None):

    @task
    def profile():
        return 1

    @task
    def place(value):
        return value

    place(profile()) >> StartProcess(task_id="launch")
'''


def main() -> list[dict[str, Any]]:
    """Start an Airflow, alternate the two kinds of run, publish medians and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        env = {"FRENZY_CLUSTER": str(write_cluster(root))}
        with Stack.running(root / "home", env=env) as stack:
            walker = Walker(stack, write_corpus(root))
            (stack.settings.jobs_folder / "bare_chain.py").write_text(BARE_DAG, encoding="utf-8")
            dag_id = walker.store(job_text("measured", walker.corpus, training={"max_steps": 1}))
            walker.eventually("bare_chain visible", lambda: walker.http.get("/api/v2/dags/bare_chain").is_success)
            _bare(walker), _frenzy(walker, dag_id)  # warm-up
            pauses = random.Random(7)
            pairs = [
                (_bare(walker, pauses.random()), _frenzy(walker, dag_id, pauses.random())) for _ in range(NUM_TURNS)
            ]
    bare, frenzy = (statistics.median(column) for column in zip(*pairs, strict=True))
    of_pairs = statistics.median(b / a for a, b in pairs)
    return publish(
        "overhead",
        [
            figure("trigger to process start, bare chain (median)", bare, "s"),
            figure("trigger to process start, Frenzy (median)", frenzy, "s"),
            # How long a turn waits for the scheduler has nothing to do with its neighbour: pairs only add that noise.
            figure("ratio of the medians", frenzy / bare, "x", RATIO_GOAL),
            figure("ratio, median of the pairs", of_pairs, "x"),
        ],
    )


def _bare(walker: Walker, pause_s: float = 0.0) -> float:
    time.sleep(pause_s)
    began = time.time()
    run_id = walker.trigger("bare_chain")
    path = f"/api/v2/dags/bare_chain/dagRuns/{run_id}/taskInstances/launch/xcomEntries/started_s"

    def started() -> float | None:
        answer = walker.http.get(path)
        return float(answer.json()["value"]) if answer.is_success else None

    seconds = walker.eventually("the bare chain's process", started) - began
    walker.eventually("the bare chain's end", lambda: walker.dag_run_state("bare_chain", run_id) == "success")
    return seconds


def _frenzy(walker: Walker, dag_id: str, pause_s: float = 0.0) -> float:
    time.sleep(pause_s)
    began = time.time()
    run_id = walker.trigger(dag_id)
    view = walker.wait_for_state(dag_id, run_id, *FINAL_STATES)
    walker.wait_for_end(dag_id, run_id)
    started_s = view.attempts[0].started_s
    assert started_s is not None, view.run.reason
    return started_s - began
