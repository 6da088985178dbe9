"""What the scheduler imports for the tasks that are forked from it: all that they need, and nothing unsafe to fork."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import frenzy.airflow
from frenzy.airflow.preload import forks_tasks

_EDGE = Path(frenzy.airflow.__file__).parent
_STARTING = """
import json, sys, threading
from airflow._shared.listeners.listener import ListenerManager
from airflow._shared.listeners.spec import lifecycle
from frenzy.airflow import preload

manager = ListenerManager()
manager.add_hookspecs(lifecycle)
manager.add_listener(preload)
manager.hook.on_starting(component=object())
print(json.dumps({"modules": sorted(sys.modules), "threads": threading.active_count()}))
"""


@cache
def started_scheduler() -> dict[str, Any]:
    """Modules and threads of a process that Airflow told of its start."""
    found = subprocess.run([sys.executable, "-c", _STARTING], capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return said


def late_imports(file: Path) -> Iterator[str]:
    """Modules that the functions of ``file`` import when they are called."""
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            for each in ast.walk(function):
                if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("frenzy."):
                    yield str(each.module)


@pytest.mark.parametrize("file", ["operators/operators.py", "tasks/profile.py", "tasks/workers.py"])
def test_no_task_up_to_the_start_of_its_workers_imports_anything_more(file: str) -> None:
    assert set(late_imports(_EDGE / file)) <= set(started_scheduler()["modules"])


def test_nothing_that_starts_threads_is_there_when_processes_are_forked() -> None:
    assert not {"aiohttp", "numpy", "pyarrow", "torch"} & set(started_scheduler()["modules"])
    assert started_scheduler()["threads"] == 1


@pytest.mark.parametrize(
    ("argv", "executor", "forks"),
    [
        (["/venv/bin/airflow", "scheduler", "--skip-serve-logs"], "LocalExecutor", True),
        (["/venv/bin/airflow", "scheduler"], "KubernetesExecutor,LocalExecutor", True),
        (["/venv/bin/airflow", "scheduler"], "KubernetesExecutor", False),
        (["/venv/bin/airflow", "triggerer"], "LocalExecutor", False),
        (["/venv/bin/airflow"], "LocalExecutor", False),
    ],
)
def test_only_a_scheduler_whose_executor_forks_imports_for_tasks(argv: list[str], executor: str, forks: bool) -> None:
    assert forks_tasks(argv, executor) is forks
