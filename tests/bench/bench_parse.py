"""Parsing 1,000 stored specifications: CPU time of the DAG files, all DAGs and a single one.

The single one is what a task process pays: its parsing context names the DAG it needs.
"""

from __future__ import annotations

import contextlib
import runpy
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.bench.report import figure, publish
from tests.e2e.walker import job_text

NUM_SPECS: Final = 1000
# Airflow gives a DAG file 30 s; a loader holds a shard.
FILE_GOAL_S: Final = 3.0
DAG_GOAL_MS: Final = 5.0


def main() -> list[dict[str, Any]]:
    """Store the specs, execute each loader once as Airflow would, publish the times."""
    from frenzy.adapters.files.job_store import FolderJobStore
    from frenzy.airflow.dags import ensure_loaders

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = FolderJobStore(root)
        for number in range(NUM_SPECS):
            store.put(f"stored-{number:04d}", job_text(f"stored-{number:04d}", root / "corpus.txt"))
        loaders = ensure_loaders(root)
        _execute(loaders[0])  # imports, paid once a process
        seconds, dags = zip(*(_execute(each) for each in loaders), strict=True)
        alone_s = _single(loaders[0])
    assert sum(dags) == NUM_SPECS, f"{sum(dags)} DAGs of {NUM_SPECS} specs"
    return publish(
        "parse",
        [
            figure("parse 1,000 stored specs, all files", sum(seconds), "CPU s"),
            figure("one DAG among them", 1000 * sum(seconds) / NUM_SPECS, "CPU ms", DAG_GOAL_MS),
            figure("the largest file", max(seconds), "CPU s", FILE_GOAL_S),
            figure("the file of a task process that needs one DAG", 1000 * alone_s, "CPU ms"),
        ],
    )


def _execute(loader: Path) -> tuple[float, int]:
    """(CPU seconds, number of DAGs) of one loader file."""
    began = time.process_time()
    names = runpy.run_path(str(loader))
    seconds = time.process_time() - began
    return seconds, sum(type(value).__name__ == "DAG" for value in names.values())


def _single(loader: Path) -> float:
    """CPU seconds of the loader when only one of its DAGs is wanted."""
    shard = loader.parent / loader.stem.removeprefix("dags_")
    wanted = f"job_{sorted(shard.glob('*.yaml'))[0].stem}"
    with _parsing(wanted):
        return _execute(loader)[0]


@contextlib.contextmanager
def _parsing(dag_id: str) -> Any:
    """Airflow's parsing context for one DAG, set as a task process has it."""
    import os

    variables = {"_AIRFLOW_PARSING_CONTEXT_DAG_ID": dag_id, "_AIRFLOW_PARSING_CONTEXT_TASK_ID": "train.profile"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
