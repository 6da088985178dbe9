"""What OpenLineage's provider for Airflow, where it is installed, is told of a training that is over."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.packaging.conftest import Installed

# Not in the lock: it would join every Airflow of the checkout.
_PROVIDER = (
    "apache-airflow-providers-openlineage==2.20.3",
    "openlineage-integration-common==1.54.0",
    "openlineage-python==1.54.0",
    "openlineage-sql==1.54.0",
)
_ASK = """
import json, sys
from dataclasses import replace
import attrs
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from frenzy.airflow.operators.operators import PublishOperator
from frenzy.core.runs.ledger import JobState, RunIdentity, RunRecord
from frenzy.core.runs.protocol import RunView
from frenzy.adapters.spec.job_spec import job_from_yaml

given = job_from_yaml(open(sys.argv[1]).read())
identity = RunIdentity(dag_id="d", run_id="r", task_group="train")
told = []
for data, model in json.loads(sys.argv[2]):
    job = replace(given, data=replace(given.data, path=data), model=replace(given.model, **model))
    run = RunRecord(
        run_key=identity.run_key, identity=identity, job=job, state=JobState.SUCCEEDED, owner="ann",
        created_s=0.0, updated_s=0.0,
    )
    task = PublishOperator(task_id="publish")
    facts = {"path": "s3://models/one/model", "loss": 1.5, "steps": None, "data_digest": "d1g"}
    task._published = RunView(run=run, attempts=()), facts
    told.append(attrs.asdict(DefaultExtractor(task).extract_on_complete(None)))
print(json.dumps(told))
"""
_JOB = """
name: one
team: search
model: {config: {model_type: gpt2, n_layer: 1, n_head: 1, n_embd: 8, vocab_size: 264, n_positions: 64}}
data: {path: /data/a.txt, sequence_length: 64}
training: {max_steps: 1, global_batch_size: 1}
"""


_HUB = {"config": None, "hub_id": "org/base"}
_CASES: dict[str, tuple[str, dict[str, Any], list[list[str]]]] = {
    "a folder": ("/data/a.txt", {}, [["file", "/data/a.txt"]]),
    "a bucket": ("s3://me:secret@corpus/2026/a.parquet", {}, [["s3://corpus", "2026/a.parquet"]]),
    "a hub's model": ("/data/a.txt", _HUB, [["file", "/data/a.txt"], ["hf", "org/base"]]),
}


@pytest.fixture(scope="module")
def told(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("openlineage")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
    subprocess.run([*pip, "--target", str(folder), *_PROVIDER], check=True)
    (folder / "one.yaml").write_text(_JOB, encoding="utf-8")
    cases = json.dumps([[data, model] for data, model, _ in _CASES.values()])
    ask = (str(installed.python), "-c", _ASK, str(folder / "one.yaml"), cases)
    return dict(zip(_CASES, json.loads(installed.run(*ask, PYTHONPATH=str(folder)).splitlines()[-1]), strict=True))


@pytest.mark.parametrize("case", _CASES)
def test_data_and_base_model_go_in(told: dict[str, Any], case: str) -> None:
    assert [[each["namespace"], each["name"]] for each in told[case]["inputs"]] == _CASES[case][2]


def test_data_that_were_prepared_have_the_digest_of_their_content_as_version(told: dict[str, Any]) -> None:
    data, base = told["a hub's model"]["inputs"]
    assert data["facets"]["version"]["datasetVersion"] == "d1g"
    assert base["facets"] == {}, "nobody knows its commit"


def test_the_model_comes_out_with_what_is_known_of_it(told: dict[str, Any]) -> None:
    (output,) = told["a folder"]["outputs"]
    assert (output["namespace"], output["name"]) == ("s3://models", "one/model")
    assert {each["key"]: each["value"] for each in output["facets"]["tags"]["tags"]} == {
        "frenzy.job": "one",
        "frenzy.team": "search",
        "frenzy.owner": "ann",
        "frenzy.path": "s3://models/one/model",
        "frenzy.loss": "1.5",
        "frenzy.data_digest": "d1g",
    }
    assert output["facets"]["version"]["datasetVersion"]
