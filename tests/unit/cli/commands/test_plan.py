"""Planning without Airflow: from a job's file and a cluster's file alone."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.usefixtures("one_config_reader")

Command = Callable[..., object]


def test_plans_are_listed_with_memory_time_cost_and_reason(frenzy: Command, spec: Path, cluster_file: Path) -> None:
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file))
    assert said.status == 0
    for word in (
        "rank",
        "plan",
        "peak",
        "required",
        "card",
        "time",
        "cost",
        "BEST_PLAN",
        "equation",
        "host:",
        "process of the rank",
    ):
        assert word in said.out


def test_what_is_trained_stands_above_the_plans_and_in_json(frenzy: Command, spec: Path, cluster_file: Path) -> None:
    spec.write_text(spec.read_text(encoding="utf-8").replace("264", "50257"), encoding="utf-8")
    asked = ("plan", str(spec), "--cluster", str(cluster_file))
    said, fit, told = frenzy(*asked), frenzy(*asked, "--fit", "1xRTX4090"), frenzy(*asked, "--json")
    model = json.loads(told.out)["model"]
    assert "random weights; tokenizer byte, 257 of the vocabulary of 50,257; 1,280 tokens in 10 steps" in model
    (spec.parent / "words.txt").unlink()
    assert [line.split(":")[0] for line in frenzy(*asked).err.splitlines()] == ["Note", "Note"]
    for each in (said, fit):
        assert each.out.startswith(f"Model: {model}\n")
        assert "Note: model.tokenizer is byte where none is named" in each.err


def test_json_holds_every_candidate_best_first(frenzy: Command, spec: Path, cluster_file: Path) -> None:
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file), "--json")
    told = json.loads(said.out)
    ranks = [each["rank"] for each in told["candidates"] if each["rank"] is not None]
    assert ranks == list(range(1, len(ranks) + 1))
    assert told["refusal"] is None
    batches = {
        each["plan"]["dp"] * each["plan"]["micro_batch_size"] * each["plan"]["accumulation_steps"]
        for each in told["candidates"]
    }
    assert batches == {4}


def test_table_and_json_name_the_same_best_plan(frenzy: Command, spec: Path, cluster_file: Path) -> None:
    told = json.loads(frenzy("plan", str(spec), "--cluster", str(cluster_file), "--json").out)
    best = told["candidates"][0]
    table = frenzy("plan", str(spec), "--cluster", str(cluster_file), "--top", "1").out
    assert f"{best['plan']['num_gpus']}x{best['plan']['gpu_type']}-z{best['plan']['zero_stage']}" in table
    assert best["reason"]["detail"].split()[0] in table


def test_all_lists_the_plans_that_others_beat_and_each_refusal_behind_the_same_best(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    asked = ("plan", str(spec), "--cluster", str(cluster_file), "--json")
    usual, everything = (json.loads(frenzy(*asked, *more).out)["candidates"] for more in ((), ("--all",)))
    num_usual, num_all = (sum(each["rank"] is not None for each in found) for found in (usual, everything))

    assert everything[0]["plan"] == usual[0]["plan"]
    assert num_all > num_usual
    assert len(everything) - num_all >= len(usual) - num_usual


def test_impossible_job_ends_with_the_smallest_remedy(frenzy: Command, spec: Path, alone: Path) -> None:
    only_tiny = alone / "tiny.yaml"
    only_tiny.write_text(
        "gpu_types:\n  tiny: {kind: virtual, memory: 2 MiB, flops: 10 GFLOPS}\n"
        "nodes:\n  - {name: one, gpu_type: tiny, gpus: 1}\n",
        encoding="utf-8",
    )
    said = frenzy("plan", str(spec), "--cluster", str(only_tiny))
    assert said.status == 1
    assert "Remedy:" in said.err


def test_each_plan_names_the_term_that_weighs_most_and_each_refusal_its_remedy(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    told = json.loads(frenzy("plan", str(spec), "--cluster", str(cluster_file), "--json").out)
    table = "".join(frenzy("plan", str(spec), "--cluster", str(cluster_file), "--top", "99").out.split())
    assert "largestterm" in table
    for each in told["candidates"]:
        tightest = each["plan"]["memory"]["terms"][0]["name"]
        assert each["rank"] is None or tightest.split()[0] in table
        refused_for_memory = each["reason"]["code"] == "INSUFFICIENT_GPU_MEMORY"
        assert not refused_for_memory or each["reason"]["remedy"]


def test_refusals_below_plans_that_fit_are_grouped_by_reason_with_their_number(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    asked = ("plan", str(spec), "--cluster", str(cluster_file), "--top", "2")
    refused = [each for each in json.loads(frenzy(*asked, "--json").out)["candidates"] if each["rank"] is None]
    below = frenzy(*asked).out.partition(f"{len(refused)} refused")[2]
    codes = Counter(each["reason"]["code"] for each in refused)
    rows = re.findall(r"^ *(\d+) +([A-Z_]+) ", below, re.MULTILINE)
    assert {code: int(count) for count, code in rows} == codes
    assert " -> " in below, "the remedy of the nearest"


def test_all_has_a_line_for_each_plan_and_the_reasons_below(frenzy: Command, spec: Path, cluster_file: Path) -> None:
    asked = ("plan", str(spec), "--cluster", str(cluster_file), "--all")
    candidates = json.loads(frenzy(*asked, "--json").out)["candidates"]
    said = frenzy(*asked).out
    codes = re.findall(r"^ *(?:\d+|-)  \S+-z\d\S* .* ([A-Z_]+) *$", said, re.MULTILINE)
    assert codes == [each["reason"]["code"] for each in candidates]
    assert said.count(" refused") == 2


def test_refused_spec_lists_each_field_with_value_and_what_is_allowed(frenzy: Command, spec: Path) -> None:
    text = spec.read_text(encoding="utf-8")
    spec.write_text(text.replace("max_steps: 10", "max_steps: -3").replace("sequence_length", "seq_len"), "utf-8")
    said = frenzy("plan", str(spec))
    assert said.status == 2
    assert "training.max_steps" in said.err
    assert "-3" in said.err
    assert "data.seq_len" in said.err
    assert said.out == ""


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"name: [", b"\xff\xfe", b"name: x\n"])
def test_file_that_is_no_specification_is_refused_in_words(frenzy: Command, spec: Path, content: bytes) -> None:
    spec.write_bytes(content)
    said = frenzy("plan", str(spec))
    assert said.status == 2
    assert "Refused" in said.err


def test_missing_file_is_named(frenzy: Command) -> None:
    said = frenzy("plan", "none.yaml")
    assert said.status == 2
    assert "none.yaml" in said.err


def test_bad_cluster_file_is_refused_in_words(frenzy: Command, spec: Path, alone: Path) -> None:
    broken = alone / "broken.yaml"
    broken.write_text("gpu_types: {a: {memory: 3 parsecs}}\nnodes: []\n", encoding="utf-8")
    said = frenzy("plan", str(spec), "--cluster", str(broken))
    assert said.status == 2
    assert "parsecs" in said.err


def test_unknown_policy_names_the_known_ones(frenzy: Command, spec: Path, cluster_file: Path) -> None:
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file), "--policy", "tarot")
    assert said.status == 2
    assert "closed-form" in said.err


def test_unknown_family_is_refused_in_words(frenzy: Command, spec: Path, cluster_file: Path) -> None:
    spec.write_text(spec.read_text(encoding="utf-8").replace("gpt2", "crystal-ball"), "utf-8")
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file))
    assert said.status == 2
    assert "crystal-ball" in said.err


# --manifest


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch, alone: Path) -> None:
    """Pod rules whose volume is where the run root is."""
    rules = alone / "pods.yaml"
    rules.write_text("image: trainer:1\nrun_directory: {claim: runs, mount_path: /runs}\n", encoding="utf-8")
    monkeypatch.setenv("FRENZY_PODS", str(rules))
    monkeypatch.setenv("FRENZY_RUN_ROOT", "/runs")


@pytest.mark.usefixtures("pods")
def test_manifest_prints_the_pods_of_the_chosen_plan_and_nothing_else(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    best = json.loads(frenzy("plan", str(spec), "--cluster", str(cluster_file), "--json").out)["candidates"][0]["plan"]
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file), "--manifest")
    printed = list(yaml.safe_load_all(said.out))
    assert said.status == 0
    assert {pod["kind"] for pod in printed} == {"Pod"}
    assert {pod["metadata"]["labels"]["frenzy.dev/gpu-type"] for pod in printed} == {best["gpu_type"]}
    assert printed[0]["spec"]["containers"][0]["image"] == "trainer:1"


@pytest.mark.usefixtures("pods")
def test_manifest_of_an_impossible_job_is_its_refusal(frenzy: Command, spec: Path, alone: Path) -> None:
    only_tiny = alone / "tiny.yaml"
    only_tiny.write_text(
        "gpu_types:\n  tiny: {kind: virtual, memory: 2 MiB, flops: 10 GFLOPS}\n"
        "nodes:\n  - {name: one, gpu_type: tiny, gpus: 1}\n",
        encoding="utf-8",
    )
    said = frenzy("plan", str(spec), "--cluster", str(only_tiny), "--manifest")
    assert (said.status, said.out) == (1, "")
    assert "Remedy:" in said.err


@pytest.mark.usefixtures("pods")
def test_manifest_says_when_the_run_root_is_on_no_volume(
    frenzy: Command, spec: Path, cluster_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRENZY_RUN_ROOT", "/elsewhere")
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file), "--manifest")
    assert (said.status, said.out) == (2, "")
    assert "mount_path" in said.err


def test_deadline_that_no_plan_meets_refuses_the_job_as_it_would_be_refused_when_submitted(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    spec.write_text(f"{spec.read_text('utf-8')}constraints: {{deadline: '2020-01-01T00:00:00Z'}}\n", "utf-8")
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file))
    assert said.status == 1
    assert "OVER_DEADLINE" in said.err
    assert "constraints.deadline" in said.err


def test_data_that_are_not_there_are_told_although_the_plans_need_none(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    asked = ("plan", str(spec), "--cluster", str(cluster_file))
    assert "Note" not in frenzy(*asked).err
    (spec.parent / "words.txt").unlink()
    said = frenzy(*asked)
    assert said.status == 0
    assert "no data file is there" in said.err
    assert "A run here would be refused for it" in said.err


@pytest.mark.parametrize(
    ("tokenizer", "note"),
    [
        ("bytes", "model.tokenizer 'bytes' is no folder here"),
        ("words", "model.tokenizer 'words' is no folder here"),
        ("/one/words", "model.tokenizer '/one/words' is no folder here"),
        ("n" * 300, "model.tokenizer 'nnn"),
        ("meta-llama/Llama-3.1-8B", None),
        ("jobs", None),
        ("train", None),
    ],
)
def test_a_tokenizer_that_is_not_here_is_told(
    frenzy: Command, spec: Path, cluster_file: Path, tokenizer: str, note: str | None
) -> None:
    place = str(spec.parent) if tokenizer == "jobs" else tokenizer
    document = yaml.safe_load(spec.read_text("utf-8"))
    document["model"] |= {"tokenizer": place, "tokenizer_vocab_size": 260}
    spec.write_text(yaml.safe_dump(document), encoding="utf-8")
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file))
    assert said.status == 0
    assert ("is no folder here" in said.err) == (note is not None)
    assert note is None or note in said.err
    assert ("Did you mean byte?" in said.err) == (tokenizer == "bytes")


@pytest.mark.parametrize("training", ["max_steps: 3", "epochs: 1"])
def test_a_folder_without_a_tokenizer_is_told_before_its_job_is_submitted(
    frenzy: Command, spec: Path, cluster_file: Path, training: str
) -> None:
    document = yaml.safe_load(spec.read_text("utf-8"))
    base = spec.parent / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(document["model"]["config"]), encoding="utf-8")
    document["model"] = {"path": str(base)}
    document["training"] = {"global_batch_size": 4, **yaml.safe_load(training)}
    spec.write_text(yaml.safe_dump(document), encoding="utf-8")
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file))
    assert said.status == 2
    assert f"model.path: '{base}' is refused; there is no tokenizer in it" in said.err


@pytest.mark.parametrize("how", [(), ("--json",)])
@pytest.mark.parametrize("training", ["max_steps: 3", "epochs: 1"])
@pytest.mark.parametrize("which", ["data", "validation"])
def test_data_that_a_run_would_refuse_are_refused_first_with_the_plans_below(
    frenzy: Command, spec: Path, cluster_file: Path, which: str, training: str, how: tuple[str, ...]
) -> None:
    document = yaml.safe_load(spec.read_text("utf-8"))
    (spec.parent / "notes.jsonl").write_text('{"id": 1, "note": "words"}\n', encoding="utf-8")
    document["data"]["validation_fraction"] = 0
    document[which] = document.get(which, {}) | {"path": str(spec.parent / "notes.jsonl")}
    document["training"] = {"global_batch_size": 4, **yaml.safe_load(training)}
    spec.write_text(yaml.safe_dump(document), encoding="utf-8")
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file), *how)
    assert said.status == 2
    assert said.err.lstrip().startswith("BAD_CONFIG_OR_DATA: data.text_column: 'text' is refused")
    assert "there are id, note" in said.err
    assert said.out


def test_steps_of_tokens_that_are_not_counted_yet_are_about_so_many(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    asked = ("plan", str(spec), "--cluster", str(cluster_file))
    assert "about" not in frenzy(*asked).out.splitlines()[1]
    document = yaml.safe_load(spec.read_text("utf-8"))
    document["training"] = {"global_batch_size": 4, "epochs": 1}
    spec.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert ", about " in frenzy(*asked).out.splitlines()[1]


def test_without_prices_no_cost_is_shown_and_cost_goes_by_gpu_hours(
    frenzy: Command, spec: Path, cluster_file: Path
) -> None:
    cluster_file.write_text(cluster_file.read_text().replace(", price_per_hour: 0.1", ""))
    asked = {**yaml.safe_load(spec.read_text()), "objective": "cost"}
    spec.write_text(yaml.safe_dump(asked))
    said = frenzy("plan", str(spec), "--cluster", str(cluster_file))
    assert "Ranked by GPU-hours: the cluster file has no price_per_hour of" in " ".join(said.out.split())
    assert "0.0000" not in said.out
