"""What the demo is judged by: asked of Airflow and the API, read from the run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import fsspec

import frenzy
from frenzy.adapters.airflow_calls import airflow_call
from frenzy.adapters.api_client import NotFoundError
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.core.runs.protocol import RunView
from frenzy.core.runs.views import MemoryView
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.run_files import RunPaths

_LOAD_TIMEOUT_S: Final = 180.0
_LOAD: Final = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
print(json.dumps({
    "family": model.config.model_type,
    "num_parameters": model.num_parameters(),
    "num_tokens": len(tokenizer),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """What loading the finished model in a process of its own showed; ``problem`` when it did not load."""

    folder: str
    files: tuple[str, ...] = ()
    family: str = ""
    num_parameters: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """One task instance of the DAG run."""

    task_id: str
    state: str | None
    start_s: float | None
    end_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the checks need.

    launched_batches: global batch size of each attempt, as its ds_config.json says.
    control_losses: loss by step of the uninterrupted run. evaluation: what the downstream task
    returned, None when it did not end well.
    """

    dag_state: str
    view: RunView
    memory: MemoryView
    launched_batches: tuple[int | None, ...]
    control_losses: Mapping[int, float]
    control_result: AttemptResult | None
    model: ModelCheck
    asset_events: tuple[Mapping[str, Any], ...]
    evaluation: Mapping[str, Any] | None
    tasks: tuple[TaskTimes, ...]


def collect(
    api: Api, view: RunView, run_dir: str, control_losses: Mapping[int, float], control_result: AttemptResult | None
) -> Evidence:
    """Ask for and read all of it; nothing is taken from what was shown on the way."""
    identity = view.run.identity
    paths = RunPaths(run_dir)
    return Evidence(
        dag_state=str(api.ask(airflow_call("GET", _dag_run(identity.dag_id, identity.run_id)))["state"]),
        view=view,
        memory=api.ask(endpoints.memory(view.run.run_key)),
        launched_batches=tuple(_launched_batch(paths, each.attempt) for each in view.attempts),
        control_losses=control_losses,
        control_result=control_result,
        model=check_model(paths.model_dir),
        asset_events=_asset_events(api, identity.dag_id, identity.run_id),
        evaluation=_evaluation(api, identity.dag_id, identity.run_id),
        tasks=_tasks(api, identity.dag_id, identity.run_id),
    )


def check_model(folder: str) -> ModelCheck:
    """Load the model and its tokenizer as any user would, in a fresh process."""
    try:
        fs, place = fsspec.core.url_to_fs(folder)
        files = tuple(sorted(str(each).rpartition("/")[2] for each in fs.ls(place, detail=False)))
    except FileNotFoundError:
        return ModelCheck(folder=folder, problem="there is no model folder")
    package = str(Path(frenzy.__file__).resolve().parents[1])
    environ = {**os.environ, "PYTHONPATH": package, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _LOAD, place]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=_LOAD_TIMEOUT_S, check=False
        )
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return ModelCheck(folder=folder, files=files, family=told["family"], num_parameters=told["num_parameters"])
    except subprocess.TimeoutExpired:
        return ModelCheck(folder=folder, files=files, problem=f"loading took more than {_LOAD_TIMEOUT_S:.0f} s")
    except (ValueError, IndexError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return ModelCheck(folder=folder, files=files, problem=f"from_pretrained failed: {last}")


def losses_by_attempt(memory: MemoryView) -> dict[int, dict[int, float]]:
    """Attempt to step to loss, of the steps that have one."""
    return {
        each.attempt: {step.step: step.loss for step in each.steps if step.loss is not None} for each in memory.attempts
    }


def _launched_batch(paths: RunPaths, attempt: int) -> int | None:
    try:
        with fsspec.open(paths.ds_config(attempt), "rt", encoding="utf-8") as file:
            return int(json.load(file)["train_batch_size"])
    except (OSError, ValueError, KeyError):
        return None


def _asset_events(api: Api, dag_id: str, run_id: str) -> tuple[Mapping[str, Any], ...]:
    query = urlencode({"source_dag_id": dag_id, "source_run_id": run_id, "limit": 100})
    found = api.ask(airflow_call("GET", f"/assets/events?{query}"))["asset_events"]
    return tuple(found)


def _evaluation(api: Api, dag_id: str, run_id: str) -> Mapping[str, Any] | None:
    """What the task after the training returned."""
    for each in _tasks(api, dag_id, run_id):
        if each.state == "success" and each.task_id.rpartition(".")[2].startswith("evaluate"):
            task = f"{_dag_run(dag_id, run_id)}/taskInstances/{quote(each.task_id, safe='')}"
            try:
                value = api.ask(airflow_call("GET", f"{task}/xcomEntries/return_value"))["value"]
            except NotFoundError:
                continue
            found = json.loads(value) if isinstance(value, str) else value
            return found if isinstance(found, Mapping) else None
    return None


def _tasks(api: Api, dag_id: str, run_id: str) -> tuple[TaskTimes, ...]:
    found = api.ask(airflow_call("GET", f"{_dag_run(dag_id, run_id)}/taskInstances?limit=100"))["task_instances"]
    return tuple(
        TaskTimes(
            task_id=each["task_id"],
            state=each["state"],
            start_s=_epoch_s(each["start_date"]),
            end_s=_epoch_s(each["end_date"]),
        )
        for each in found
    )


def _epoch_s(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _dag_run(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
