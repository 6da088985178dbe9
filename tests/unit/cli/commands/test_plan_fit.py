"""How a job would fit cards that somebody names, or what would mend a plan that ran out of memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.usefixtures("one_config_reader")

Command = Callable[..., object]

BIG = """
name: big
model:
  config: {model_type: llama, hidden_size: 4096, intermediate_size: 11008, num_hidden_layers: 32,
           num_attention_heads: 32, vocab_size: 32000, max_position_embeddings: 4096}
data: {path: words.txt, sequence_length: 2048}
training: {global_batch_size: 8, max_steps: 10}
"""


@pytest.fixture
def big(alone: Path) -> Path:
    """A job of 7 billion random weights."""
    file = alone / "jobs/big.yaml"
    file.write_text(BIG, encoding="utf-8")
    return file


def test_fit_refuses_the_data_that_a_run_would_refuse(frenzy: Command, spec: Path, alone: Path) -> None:
    (alone / "jobs/words.txt").write_bytes(b"")
    said = frenzy("plan", str(spec), "--fit", "1xRTX4090")
    assert (said.status, "there is no text in it" in said.err) == (2, True)
    assert frenzy("plan", str(spec)).status == 2
    assert "fits 1 rtx-4090 as it is" in said.out
    assert json.loads(frenzy("plan", str(spec), "--fit", "1xRTX4090", "--json").out)["data_refusal"] is not None


def test_fit_proposes_no_adapters_where_the_weights_are_random(frenzy: Command, spec: Path, big: Path) -> None:
    said = frenzy("plan", str(big), "--fit", "1xRTX4090")
    assert said.status == 1
    assert "no change of the job was found" in said.out
    assert "Adapters (training.lora) were not tried" in said.out
    assert "In the job's file" not in said.out


def test_fit_says_first_why_the_trainer_does_not_train_a_model(frenzy: Command, spec: Path, alone: Path) -> None:
    document = yaml.safe_load(BIG)
    document["model"]["config"]["model_type"] = "bert"
    encoder = alone / "jobs/encoder.yaml"
    encoder.write_text(yaml.safe_dump(document), encoding="utf-8")
    said = frenzy("plan", str(encoder), "--fit", "8xH100")
    assert said.status == 1
    assert "big does not run on 8 h100 on 1 node: The trainer trains models that continue a text; bert" in said.out
    assert "workload.task: classification" in said.out
    assert "No change of the job that was tried makes it fit 8 h100 on 1 node." in said.out
    assert "Adapters" not in said.out


def test_fit_refuses_no_plans_of_more_cards_than_were_named(frenzy: Command, spec: Path, big: Path) -> None:
    said = json.loads(frenzy("plan", str(big), "--fit", "1xRTX4090", "--json").out)
    assert {each["plan"]["num_gpus"] for each in said["candidates"]} == {1}


def test_fit_prints_the_lines_to_paste_and_they_make_the_job_fit(frenzy: Command, spec: Path, alone: Path) -> None:
    document = yaml.safe_load(BIG)
    (alone / "jobs/base").mkdir()
    (alone / "jobs/base/config.json").write_text(json.dumps(document["model"]["config"]), encoding="utf-8")
    document["model"] = {"path": str(alone / "jobs/base"), "tokenizer": "byte"}
    big = alone / "jobs/big.yaml"
    big.write_text(yaml.safe_dump(document), encoding="utf-8")
    said = frenzy("plan", str(big), "--fit", "1xRTX4090")
    assert said.status == 0
    assert "training.lora: none -> rank 16" in said.out
    pasted = yaml.safe_load(said.out.split("In the job's file:")[1].split("Plans on")[0])
    document["training"].update(pasted["training"])
    big.write_text(yaml.safe_dump(document), encoding="utf-8")
    again = frenzy("plan", str(big), "--fit", "1xRTX4090")
    assert again.status == 0
    assert "fits 1 rtx-4090 as it is" in again.out


def test_fit_in_place_of_a_plan_lists_what_alone_mends_it(frenzy: Command, spec: Path, alone: Path, big: Path) -> None:
    asked = ("plan", str(big), "--fit", "8xA100-40-z1-mb1")
    said = frenzy(*asked)
    assert said.status == 0
    assert "Any one of these alone mends 8xa100-40-z1-mb1" in said.out
    assert "ZeRO stage: 1 -> 3" in said.out
    assert "as it is, by another plan" in said.out
    told = json.loads(frenzy(*asked, "--json").out)
    assert told["in_place_of"] == "8xa100-40-z1-mb1"
    assert told["mends"][0]["plan"]["gpu_type"] == "a100-40"
    assert told["mends"][0]["effect"] == "same_result"
    assert "larger card" in said.out


def test_fit_says_what_a_plan_is_taken_to_have_needed_and_which_network_more_gpus_have(
    frenzy: Command, spec: Path, big: Path
) -> None:
    failed = frenzy("plan", str(big), "--fit", "8xA100-80-z3-mb1")
    assert "Note: 8xa100-80-z3-mb1 is predicted to need" in failed.err
    assert "more, which is the least with which it can have failed" in failed.err
    beyond, inside = (frenzy("plan", str(big), "--fit", each) for each in ("8xA100-40-z1-mb1", "4xA100-40-z3-mb1"))
    assert "is predicted to need" not in beyond.err
    assert "GPUs: 8 -> 16" in beyond.out
    assert "Nodes are taken to be joined by 10 Gbit/s" in beyond.err
    assert "GPUs: 4 -> 8" in inside.out
    assert "joined by" not in inside.err


def test_fit_says_that_a_job_which_always_checkpoints_never_runs_a_plan_without(frenzy: Command, spec: Path) -> None:
    document = yaml.safe_load(spec.read_text("utf-8"))
    document["training"]["gradient_checkpointing"] = "on"
    spec.write_text(yaml.safe_dump(document), "utf-8")
    said = frenzy("plan", str(spec), "--fit", "1xh100-z1-mb1")
    assert "Note: training.gradient_checkpointing is on, with which the job never runs" in " ".join(said.err.split())


def test_fit_in_place_of_a_plan_that_the_job_has_not_is_refused_in_words(frenzy: Command, spec: Path) -> None:
    said = frenzy("plan", str(spec), "--fit", "1xh100-z3-mb1")
    assert said.status == 2
    assert "The job has no plan 1xh100-z3-mb1" in said.err


def test_fit_lists_other_changes_that_would_do(frenzy: Command, spec: Path, alone: Path, big: Path) -> None:
    said = frenzy("plan", str(big), "--fit", "1xA100-40")
    assert said.status == 1
    assert "Any one of these alone would do" in said.out
    assert "GPUs: 1 -> " in said.out


def test_fit_knows_the_types_of_the_cluster_file_and_the_host_memory_of_their_nodes(
    frenzy: Command, spec: Path, alone: Path
) -> None:
    own = alone / "own.yaml"
    own.write_text(
        "gpu_types:\n  mine: {kind: virtual, memory: 640 MiB, flops: 10 GFLOPS}\n"
        "nodes:\n  - {name: one, gpu_type: mine, gpus: 2, host_memory: 8 GiB}\n",
        encoding="utf-8",
    )
    said = frenzy("plan", str(spec), "--fit", "1xmine", "--cluster", str(own))
    assert said.status == 0
    assert "fits 1 mine as it is" in said.out
    assert "8.0 GiB of host memory" in " ".join(said.out.split())


@pytest.mark.parametrize("option", ["--manifest", "--all"])
def test_fit_beside_what_is_of_the_cluster_is_refused_not_dropped(frenzy: Command, spec: Path, option: str) -> None:
    said = frenzy("plan", str(spec), "--fit", "1xh100", option)
    assert (said.status, said.out) == (2, "")
    assert option in said.err


@pytest.mark.parametrize("name", ["H100-80GB-HBM3", "A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"])
def test_fit_knows_cards_as_their_driver_names_them(frenzy: Command, spec: Path, name: str) -> None:
    assert frenzy("plan", str(spec), "--fit", f"1x{name}").status == 0


@pytest.mark.parametrize(
    ("name", "may_be"),
    [
        ("A100", "a100-40, a100-40-pcie, a100-80, a100-80-pcie"),
        ("V100", "v100-16, v100-16-pcie, v100-32, v100-32-pcie"),
        ("A100-SXM4", "a100-40, a100-80."),
    ],
)
def test_fit_asks_for_the_memory_where_cards_of_one_name_differ_in_it(
    frenzy: Command, spec: Path, name: str, may_be: str
) -> None:
    said = frenzy("plan", str(spec), "--fit", f"1x{name}")
    assert said.status == 2
    assert f"it may be {may_be}" in " ".join(said.err.split())


@pytest.mark.parametrize("content", [None, "nodes: 3"])
def test_fit_needs_no_cluster_file_unless_one_is_named(
    frenzy: Command, spec: Path, alone: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    elsewhere = alone / "elsewhere.yaml"
    if content is not None:
        elsewhere.write_text(content, encoding="utf-8")
    monkeypatch.setenv("FRENZY_CLUSTER", str(elsewhere))
    said = frenzy("plan", str(spec), "--fit", "1xRTX4090")
    assert said.status == 0
    assert "Cards are those of the catalogue alone." in " ".join(said.err.split())
    assert frenzy("plan", str(spec), "--fit", "1xRTX4090", "--cluster", str(elsewhere)).status == 2


def test_fit_of_a_card_that_is_not_there_names_those_like_it(frenzy: Command, spec: Path) -> None:
    said = frenzy("plan", str(spec), "--fit", "1xmh100")
    assert said.status == 2
    assert "Did you mean h100" in said.err
    assert "docs/gpu-catalogue.md" in said.err


def test_fit_of_an_unknown_card_is_refused_with_words(frenzy: Command, spec: Path) -> None:
    said = frenzy("plan", str(spec), "--fit", "1xAbacus")
    assert said.status == 2
    assert "not known" in said.err


def test_fit_moves_a_deadline_that_no_plan_meets_and_prints_the_line(frenzy: Command, spec: Path) -> None:
    spec.write_text(f"{spec.read_text('utf-8')}constraints: {{deadline: '2020-01-01T00:00:00Z'}}\n", "utf-8")
    said = frenzy("plan", str(spec), "--fit", "1xRTX4090")
    assert said.status == 0
    pasted = yaml.safe_load(said.out.split("In the job's file:")[1].split("Plans on")[0])
    assert pasted.keys() == {"constraints"}
    assert pasted["constraints"].keys() == {"deadline"}
