"""A script of the user's own in the specification: what it says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.adapters.spec.test_job_spec import refusals

from frenzy.adapters.spec.job_paths import anchored
from frenzy.adapters.spec.job_spec import job_from_document, job_from_yaml, job_to_yaml
from frenzy.adapters.spec.spec_file import checked_spec
from frenzy.core.values import codec
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.resource_plan import MemorySource
from frenzy.offline import plan
from frenzy.settings import CHECKOUT

SCRIPT: dict[str, Any] = {"command": ["python", "train.py"]}


def text(workload: dict[str, Any] | None = None, **other: Any) -> str:
    document = {"name": "mine", "workload": {**SCRIPT, **(workload or {})}, "memory": {"per_gpu": "2 GiB"}, **other}
    return json.dumps({key: each for key, each in document.items() if each is not None})


def test_a_script_needs_neither_model_nor_data_nor_steps() -> None:
    job = job_from_yaml(text())
    assert job.workload is not None
    assert (job.brings_own_data, job.names_a_model, job.can_move) == (True, False, False)
    assert job.memory is not None
    assert job.memory.per_gpu_bytes == 2 * 1024**3
    assert job_from_yaml(job_to_yaml(job)) == job
    assert job_from_yaml(job_to_yaml(job, full=True)) == job
    assert codec.loads(TrainingJob, codec.dumps(job)) == job


@pytest.mark.parametrize(
    ("resumable", "moves", "changes_width"), [(True, True, True), ("same-world", True, False), (False, False, False)]
)
def test_resumable_is_true_false_or_same_world(resumable: Any, moves: bool, changes_width: bool) -> None:
    job = job_from_yaml(text({"resumable": resumable}))
    assert (job.can_move, job.can_change_width) == (moves, changes_width)
    assert job_from_yaml(job_to_yaml(job)) == job


def test_what_resumable_may_be_is_named() -> None:
    assert refusals(text({"resumable": "same_world"})) == {
        "workload.resumable": "'same_world' -> one of true, false, same-world"
    }


@pytest.mark.parametrize(
    ("workload", "path", "allowed"),
    [
        ({"honours": ["microbatch"]}, "workload.honours[0]", "did you mean micro_batch?"),
        ({"honours": ["zero", "speed"]}, "workload.honours[1]", "one of micro_batch, zero"),
        ({"command": ["torchrun", "train.py"]}, "workload.command", "the command of one rank"),
        ({"command": ["/opt/bin/accelerate", "launch", "t.py"]}, "workload.command", "the command of one rank"),
        ({"command": ["python", "-m", "torch.distributed.run", "t.py"]}, "workload.command", "the command of one rank"),
        ({"command": ["python train.py"]}, "workload.command", "did you mean [python, train.py]?"),
        ({"command": ["python", ""]}, "workload.command[1]", "a word of 1 to"),
        ({"command": []}, "workload.command", "a list of text"),
        ({"comand": ["x"]}, "workload.comand", "did you mean workload.command?"),
        ({"min_gpus": 4, "max_gpus": 2}, "workload.max_gpus", "at least min_gpus = 4"),
        ({"min_gpus": 1, "max_gpus": 2}, "workload.max_gpus", "add world_size to workload.honours"),
        ({"packages": {"deepspeed": "0.15"}}, "workload.packages.deepspeed", "only transformers is known"),
        ({"packages": {"transformers": "new"}}, "workload.packages.transformers", "a release such as '4.48.1'"),
        ({"min_gpus": 3}, "training.global_batch_size", "a number that 3 GPUs can share evenly"),
        ({"min_gpus": 3}, "training.global_batch_size", "such as 30 or 33"),
        ({"min_gpus": 64}, "training.global_batch_size", "such as 64"),
    ],
)
def test_a_bad_workload_is_refused_by_name(workload: dict[str, Any], path: str, allowed: str) -> None:
    found = refusals(text(workload))
    assert list(found) == [path]
    assert allowed in found[path]


def test_a_script_may_name_its_model_declare_its_memory_or_leave_it_to_be_measured() -> None:
    assert job_from_yaml(text(memory=None)).memory is None
    assert "is not a size" in refusals(text(memory={"per_gpu": "much"}))["memory.per_gpu"]
    assert "above 0" in refusals(text(memory={"per_gpu": "0 GiB"}))["memory.per_gpu"]
    named = job_from_yaml(text(memory=None, model={"config": {"model_type": "gpt2"}}))
    assert named.names_a_model


def test_what_only_the_built_in_trainer_does_is_refused() -> None:
    found = refusals(
        text(
            training={"epochs": 2, "callbacks": [{"path": "a:B"}]},
            checkpoint={"warm_start": "/models/one"},
        )
    )
    assert set(found) == {"training.epochs", "training.callbacks", "checkpoint.warm_start"}
    of_trainer = {"model": {"config": {"model_type": "gpt2"}}, "data": {"path": "t.txt"}, "training": {"max_steps": 1}}
    assert (
        "only for a workload"
        in refusals(text(workload=None) and json.dumps({"name": "mine", **of_trainer, "memory": {"per_gpu": "2 GiB"}}))[
            "memory"
        ]
    )


def test_the_script_folder_is_made_absolute_where_the_job_is_submitted(tmp_path: Any) -> None:
    (tmp_path / "scripts").mkdir()
    job = anchored(job_from_document(json.loads(text({"folder": "scripts"}))), [tmp_path])
    assert job.workload is not None
    assert job.workload.folder == str(tmp_path / "scripts")


PREDICTED = ("scripts/hf-trainer", "recipes/pretrain", "recipes/sft-chat", "recipes/sft-chat-lora")
PREDICTED += ("recipes/classify", "recipes/dpo")
DECLARED = ("scripts/deepspeed-zero", "scripts/torchrun-ddp")


@pytest.mark.usefixtures("one_config_reader")
@pytest.mark.parametrize("name", [*PREDICTED, *DECLARED])
def test_the_example_jobs_find_their_scripts_and_have_a_plan_on_the_laptop_cluster(name: str) -> None:
    spec = checked_spec(CHECKOUT / f"include/jobs/{name}.yaml")
    workload = spec.job.workload
    assert workload is not None
    files = [each for each in workload.command if each.endswith((".py", ".json"))]
    assert files[0] == workload.command[1]
    assert all((Path(workload.folder or "") / each).is_file() for each in (*files, spec.job.data.path))
    assert job_from_yaml(spec.text) == spec.job
    found = plan(spec.job, cluster_file=CHECKOUT / "include/clusters/laptop.yaml")
    fitting = [each.plan for each in found.candidates if each.feasible]
    assert {1, 2} <= {each.num_gpus for each in fitting}
    expected = MemorySource.PREDICTED if name in PREDICTED else MemorySource.DECLARED
    assert {each.memory.source for each in fitting} == {expected}


@pytest.mark.parametrize("name", ["axolotl", "torchtitan"])
def test_jobs_for_programs_that_are_not_installed_here_say_so_and_are_specifications(name: str) -> None:
    text = (CHECKOUT / f"include/jobs/recipes/{name}.yaml").read_text()
    assert "NOT RUN here" in text.splitlines()[0]
    job = job_from_yaml(text)
    assert job.workload is not None
    assert job.workload.command[:2] == ("sh", "-c")
    assert job.workload.command[2].startswith("exec python -m ")
