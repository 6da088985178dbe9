"""The recipes for chats, preferences, classes and texts, run by the launcher: tiny models, Shakespeare's words."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from tests.script_files import load_script
from tests.trainer.launching import REPOSITORY, Case, LaunchServer, losses, records
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult, Control, ControlAction
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.units import MIB
from frenzy.trainer import files

RECIPES = REPOSITORY / "include/recipes"
LLAMA = json.loads((RECIPES / "tiny-llama.json").read_text())
STOP = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=Reason(code=ReasonCode.PREEMPTED))
SHARE_GPT = ["--column", "talk", "--role-key", "from", "--content-key", "value"]
SHARE_GPT += ["--role", "human=user", "--role", "gpt=assistant"]


PLAYS = load_script(RECIPES / "plays.py")


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The recipes as modules."""
    sys.path.insert(0, str(RECIPES))
    names = ("recipe_parts", "sft_chat", "dpo_pairs", "classify", "pretrain")
    yield SimpleNamespace(**{each: importlib.import_module(each) for each in names})
    sys.path.remove(str(RECIPES))
    for each in names:
        del sys.modules[each]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Some two thousand pairs of speeches with an answer that was not given."""
    return list(PLAYS.preferences(PLAYS.speeches(PLAYS.PLAYS.read_text())))


@pytest.fixture(scope="module")
def chats(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Chats in parquet, under the names of ShareGPT."""
    place = tmp_path_factory.mktemp("chats") / "chats.parquet"
    theirs = {"user": "human", "assistant": "gpt"}
    talks = [
        [{"from": theirs[m["role"]], "value": m["content"]} for m in r["prompt"] + r["chosen"]] for r in rows[:600]
    ]
    Dataset.from_dict({"talk": talks}).to_parquet(place)
    return str(place)


def recipe(words: list[str], run_dir: Path, data: str, **of_case: Any) -> Case:
    workload = {"command": ["python", *words], "folder": str(RECIPES), "framework": "hf-trainer", "resumable": True}
    job = {"workload": workload | {"honours": ["micro_batch", "world_size"]}, "checkpoint": {"every_steps": 1000}}
    given: dict[str, Any] = {"num_steps": 4, "zero_stage": 1, "micro_batch_size": 2, "memory_bytes": 1024 * MIB}
    given["data_section"] = {"sequence_length": 192, **of_case.pop("data_section", {})}
    return Case(run_dir=str(run_dir), data=data, model=LLAMA, job=job, **given | of_case)


def log(case: Case) -> str:
    return (Path(RunPaths(case.run_dir).logs_dir(case.attempt)) / "rank-0.log").read_text()


def trained(server: LaunchServer, case: Case) -> AttemptResult:
    result = server.run(case)
    assert (result.exit_code, result.last_step) == (ExitCode.DONE, case.num_steps), (result, log(case))
    return result


def check_moved(server: LaunchServer, whole: Case, run_dir: Path) -> None:
    """Stopped on two ranks, gone on with on one: the losses of a run that nobody stopped."""
    trained(server, whole)
    first = replace(whole, run_dir=str(run_dir), num_gpus=2)
    launch = server.start(first)
    launch.wait_for_step(2)
    files.write_text(RunPaths(first.run_dir).control(1), codec.dumps(STOP))
    stopped = launch.wait()
    assert stopped.exit_code == ExitCode.CHECKPOINTED, (stopped, log(first))
    assert 2 <= stopped.last_step == stopped.checkpoint_step < whole.num_steps
    second = replace(first, attempt=2, num_gpus=1)
    assert trained(server, second).resumed_from_step == stopped.last_step
    assert losses(first) + losses(second) == pytest.approx(losses(whole), abs=1e-5)


@pytest.mark.thorough
def test_fine_tuning_with_packed_chats_goes_on_with_another_number_of_gpus(
    script_server: LaunchServer, chats: str, tmp_path: Path
) -> None:
    words = ["sft_chat.py", "--packing", *SHARE_GPT]
    whole = recipe(words, tmp_path / "whole", chats, num_steps=24)
    check_moved(script_server, whole, tmp_path / "moved")
    assert losses(whole)[-1] < losses(whole)[0]
    model = Path(RunPaths(whole.run_dir).model_dir)
    assert AutoTokenizer.from_pretrained(model).chat_template
    assert (model / "model.safetensors").is_file()


@pytest.mark.thorough
def test_preferences_with_adapters_go_on_with_another_number_of_gpus(
    script_server: LaunchServer, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps({"ask": r["prompt"], **r}) + "\n" for r in rows[:400]))
    words = ["dpo_pairs.py", "--prompt", "ask"]
    whole = recipe(words, tmp_path / "whole", str(data), num_steps=24, training={"lora": {"rank": 4}})
    check_moved(script_server, whole, tmp_path / "moved")
    assert losses(whole)[0] == pytest.approx(0.6931, abs=1e-3), "policy and reference are one before the first step"
    model, told = AutoModelForCausalLM.from_pretrained(RunPaths(whole.run_dir).model_dir, output_loading_info=True)
    assert (model.config.hidden_size, told["missing_keys"]) == (LLAMA["hidden_size"], set())


def base(scripts: SimpleNamespace, config: Path = RECIPES / "tiny-llama.json") -> Any:
    return scripts.recipe_parts.model_of(AutoModelForCausalLM, str(config), scripts.recipe_parts.tokenizer_of(None))


def with_adapters(model: Any) -> PeftModel:
    """As if they had been trained."""
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, init_lora_weights=False)).eval()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # the adapters' library asks for it
def test_adapters_on_a_config_are_saved_with_the_base_that_exists_nowhere_else(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    adapted, tokens = with_adapters(base(scripts)), torch.arange(8)[None]
    with torch.no_grad():
        expected = adapted(tokens).logits
        scripts.recipe_parts.loadable(adapted).save_pretrained(tmp_path)
        found = AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits
    assert not (tmp_path / "adapter_config.json").exists()
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # the adapters' library asks for it
def test_a_config_that_names_the_model_it_was_copied_from_does_not_make_it_the_base_of_adapters(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    copied = tmp_path / "copied.json"
    copied.write_text(
        json.dumps({**json.loads((RECIPES / "tiny-llama.json").read_text()), "_name_or_path": "some/hub"})
    )
    assert not isinstance(scripts.recipe_parts.loadable(with_adapters(base(scripts, copied))), PeftModel)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # the adapters' library asks for it
def test_adapters_on_a_folder_of_weights_are_saved_alone(scripts: SimpleNamespace, tmp_path: Path) -> None:
    base(scripts).save_pretrained(tmp_path)
    adapted = with_adapters(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert scripts.recipe_parts.loadable(adapted) is adapted


@pytest.mark.thorough
def test_fine_tuning_with_adapters_leaves_the_base_as_it_was(
    script_server: LaunchServer, scripts: SimpleNamespace, chats: str, tmp_path: Path
) -> None:
    for each in (scripts.recipe_parts.tokenizer_of(None), base(scripts)):
        each.save_pretrained(tmp_path / "model")
    case = recipe(["sft_chat.py", *SHARE_GPT], tmp_path / "run", chats, training={"lora": {"rank": 4}})
    case = replace(case, model_section={"path": str(tmp_path / "model"), "tokenizer": "model"})
    trained(script_server, case)
    with safe_open(Path(RunPaths(case.run_dir).model_dir) / "adapter_model.safetensors", "pt") as file:
        assert all("lora_" in name for name in file.keys())  # noqa: SIM118  # no mapping


def test_classification_learns_who_speaks_and_names_its_classes(script_server: LaunchServer, tmp_path: Path) -> None:
    data = str(REPOSITORY / "include/data/recipes/speakers.jsonl")
    held_out = {"validation_fraction": 0.1}
    words = ["classify.py", "--label", "speaker"]
    case = recipe(words, tmp_path / "run", data, num_steps=20, num_gpus=2, data_section=held_out)
    trained(script_server, case)
    assert [each.step for each in records(case, 1)] == list(range(1, 21))
    assert "eval_accuracy" in log(case)
    config = json.loads((Path(RunPaths(case.run_dir).model_dir) / "config.json").read_text())
    assert sorted(config["id2label"].values()) == ["DUKE VINCENTIO", "GLOUCESTER", "MENENIUS", "ROMEO"]


@pytest.mark.thorough
def test_pre_training_goes_on_from_a_folder_of_weights_on_a_saved_dataset(
    script_server: LaunchServer, scripts: SimpleNamespace, tmp_path: Path
) -> None:
    Dataset.from_dict({"words": PLAYS.PLAYS.read_text().split("\n\n")}).save_to_disk(tmp_path / "data")
    tokenizer, model = scripts.recipe_parts.tokenizer_of(None), base(scripts)
    torch.nn.init.zeros_(model.lm_head.weight)
    for each in (tokenizer, model):
        each.save_pretrained(tmp_path / "model")
    own = {"path": str(tmp_path / "model"), "tokenizer": "model"}
    case = recipe(["pretrain.py"], tmp_path / "run", str(tmp_path / "data"), data_section={"text_column": "words"})
    trained(script_server, replace(case, model_section=own))
    assert losses(case)[0] == pytest.approx(math.log(LLAMA["vocab_size"]), abs=1e-5), "its head knows nothing yet"
    assert losses(case)[-1] < losses(case)[0]


CHAT = [{"role": "user", "content": "Who's there?"}, {"role": "assistant", "content": "Nay, answer me."}]
PAIR = {"prompt": "Who's there?", "chosen": "Nay, answer me.", "rejected": "No."}


def why_refused(capsys: pytest.CaptureFixture[str], call: Callable[[], object]) -> str:
    """What ``call`` says when it ends the run."""
    with pytest.raises(SystemExit) as ended:
        call()
    assert ended.value.code == ExitCode.BAD_CONFIG_OR_DATA
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("chat", "why"),
    [
        ([{"role": "user"}], "row 2: message 1 has no text in 'content'"),
        ([], "row 2: messages is no list of messages"),
        ([CHAT[0]], "row 2: no token of it is an answer; its roles are user (--role THEIRS=assistant)"),
    ],
)
def test_a_recipe_refuses_chats_by_their_row(
    scripts: SimpleNamespace, capsys: pytest.CaptureFixture[str], chat: list[Any], why: str
) -> None:
    tokenizer, words = scripts.recipe_parts.tokenizer_of(None), scripts.sft_chat.command([])
    rows = Dataset.from_list([{"messages": CHAT}, {"messages": chat}])
    assert why_refused(capsys, lambda: scripts.sft_chat.tokens_of(rows, tokenizer, words)) == why


def test_a_recipe_refuses_a_template_that_does_not_mark_the_answers(
    scripts: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, words = scripts.recipe_parts.tokenizer_of(None), scripts.sft_chat.command([])
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    rows = Dataset.from_list([{"messages": CHAT}])
    why = why_refused(capsys, lambda: scripts.sft_chat.tokens_of(rows, tokenizer, words))
    assert why.startswith("row 1: the chat template has no {% generation %}")


def test_a_recipe_counts_the_answers_and_their_ends_alone(scripts: SimpleNamespace) -> None:
    tokenizer, words = scripts.recipe_parts.tokenizer_of(None), scripts.sft_chat.command([])
    row = scripts.sft_chat.tokens_of(Dataset.from_list([{"messages": CHAT}]), tokenizer, words)[0]
    counted = [token for token in row["labels"] if token != scripts.sft_chat.IGNORED]
    assert tokenizer.decode(counted) == "Nay, answer me.<|end|>"
    assert tokenizer.decode(row["input_ids"]) == "<|user|>Who's there?<|end|><|assistant|>Nay, answer me.<|end|>"


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ({"rejected": PAIR["chosen"]}, "row 2: chosen and rejected are the same, so that nothing is preferred"),
        ({"rejected": ""}, "row 2: rejected is neither a text nor a list of messages"),
        ({"chosen": None}, "row 2: chosen is neither a text nor a list of messages"),
    ],
)
def test_a_recipe_refuses_preferences_by_their_row(
    scripts: SimpleNamespace, capsys: pytest.CaptureFixture[str], pair: dict[str, Any], why: str
) -> None:
    tokenizer, rows = scripts.recipe_parts.tokenizer_of(None), Dataset.from_list([PAIR, {**PAIR, **pair}])
    names = scripts.dpo_pairs.COLUMNS
    assert why_refused(capsys, lambda: scripts.dpo_pairs.pairs_of(rows, names, tokenizer)) == why


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "a", "label": None}, "row 2: label, a NoneType, is neither a text nor a whole number"),
        ({"text": "", "label": "a"}, "row 2: text has no text"),
        ({"text": "a", "label": "b"}, "row 1: label is 'b' in every row, so that nothing can be told apart"),
    ],
)
def test_a_recipe_refuses_labels_by_their_row(
    scripts: SimpleNamespace, capsys: pytest.CaptureFixture[str], row: dict[str, Any], why: str
) -> None:
    rows = Dataset.from_list([{"text": "To be", "label": "b"}, row])
    assert why_refused(capsys, lambda: scripts.classify.classes_of(rows, "label", "text")) == why


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([10, 9, 0, 11, 2], ["0", "2", "9", "10", "11"]), (["b", "a", "b"], ["a", "b"])],
)
def test_a_recipe_numbers_classes_in_the_order_of_their_labels(
    scripts: SimpleNamespace, labels: list[Any], classes: list[str]
) -> None:
    rows = Dataset.from_list([{"text": "To be", "label": each} for each in labels])
    assert scripts.classify.classes_of(rows, "label", "text") == classes


def test_a_recipe_refuses_texts_by_their_row(scripts: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, rows = scripts.recipe_parts.tokenizer_of(None), Dataset.from_list([{"text": "To be"}, {"text": None}])
    why = why_refused(capsys, lambda: scripts.pretrain.sequences_of(rows, tokenizer, "text", 8))
    assert why == "row 2: text, a NoneType, is no text"


def test_packed_chats_of_a_recipe_do_not_see_each_other(scripts: SimpleNamespace) -> None:
    parts = scripts.recipe_parts
    tokenizer = parts.tokenizer_of(None)
    model = parts.model_of(AutoModelForCausalLM, str(RECIPES / "tiny-llama.json"), tokenizer).eval()
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in ("Who's there?", "Nay, answer me.")]
    rows = [{**row, "labels": row["input_ids"]} for row in rows]
    packed = DataCollatorForLanguageModeling(tokenizer.pad_token_id, padding_free=True)(rows)
    assert "attention_mask" not in packed, "beside it, transformers takes no notice of the positions"
    with torch.no_grad():
        given = {name: packed[name] for name in ("input_ids", "position_ids")}
        together = model(**given, use_cache=False).logits[0]
        alone = torch.cat([model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows])
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_data_of_the_recipes_are_those_that_the_plays_give() -> None:
    folder = REPOSITORY / "include/data/recipes"
    assert {each.name: each.read_text() for each in folder.glob("*.jsonl")} == PLAYS.files()
