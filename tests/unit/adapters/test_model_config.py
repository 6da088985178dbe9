"""A model's config is completed by transformers, refused with its place, and kept for the next time."""

from __future__ import annotations

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.airflow_secrets import SECRET, hold_secrets

from frenzy.adapters import library_process
from frenzy.adapters.model_config import ask_patiently, resolve_model_config
from frenzy.core.values.errors import SpecError, TemporaryError
from frenzy.core.values.job import ModelSpec

TINY = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}


def test_defaults_come_from_transformers_and_follow_what_is_given() -> None:
    config = resolve_model_config(ModelSpec(config=TINY))
    assert config["hidden_size"] == 64
    assert config["num_key_value_heads"] == 4


@pytest.mark.usefixtures("one_config_reader")
def test_an_answer_is_kept_and_used_again(tmp_path: Path) -> None:
    first = resolve_model_config(ModelSpec(config=TINY), cache_folder=tmp_path)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(json.dumps({**first, "hidden_size": 99}), encoding="utf-8")
    assert resolve_model_config(ModelSpec(config=TINY), cache_folder=tmp_path)["hidden_size"] == 99


@pytest.mark.usefixtures("one_config_reader")
def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    config = resolve_model_config(ModelSpec(config=TINY), cache_folder=tmp_path / "file/cache")
    assert config["hidden_size"] == 64


@pytest.mark.usefixtures("one_config_reader")
def test_a_local_folder_gives_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    assert resolve_model_config(ModelSpec(path=str(tmp_path)))["hidden_size"] == 64


@pytest.mark.usefixtures("one_config_reader")
def test_a_refused_config_names_its_place() -> None:
    with pytest.raises(SpecError) as caught:
        resolve_model_config(ModelSpec(config={"model_type": "gpt2", "n_embd": "wide"}))
    assert caught.value.violations[0].path == "model.config"


@pytest.mark.usefixtures("one_config_reader")
@pytest.mark.parametrize(("family", "allowed"), [("gpt22", "did you mean gpt2"), ("?", "that transformers knows")])
def test_an_unknown_family_is_told_the_nearest_one(family: str, allowed: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_model_config(ModelSpec(config={"model_type": family, "n_embd": 64}))
    (violation,) = caught.value.violations
    assert (violation.path, violation.value) == ("model.config.model_type", repr(family))
    assert allowed in violation.allowed


def test_a_folder_without_a_config_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="model.path"):
        resolve_model_config(ModelSpec(path=str(tmp_path)))


_TELLTALE = """
import json, os

class AutoConfig:
    @classmethod
    def for_model(cls, family, **options):
        return cls()

    def get_text_config(self):
        return self

    def to_json_string(self, use_diff):
        return json.dumps(dict(os.environ))
"""


def test_the_process_that_reads_a_users_config_sees_nothing_that_airflow_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With code of a model in the place of transformers, which tells what it sees."""
    (tmp_path / "transformers.py").write_text(_TELLTALE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    hold_secrets(monkeypatch)
    seen = resolve_model_config(ModelSpec(config={"model_type": "gpt2"}))
    assert seen["PYTHONPATH"].endswith(str(tmp_path))
    assert SECRET not in str(seen)


@pytest.mark.usefixtures("one_config_reader")
def test_a_bound_as_the_library_writes_it_is_read_again() -> None:
    bound = [0.0, {"__float__": "Infinity"}]
    assert (
        resolve_model_config(ModelSpec(config={"model_type": "falcon_h1", "time_step_limit": bound}))["time_step_limit"]
        == bound
    )


def test_the_process_that_is_asked_has_only_so_much_time() -> None:
    with pytest.raises(TemporaryError, match=r"it did not answer within 0\.2 s"):
        library_process.ask("import time; time.sleep(60)", {}, timeout_s=0.2)


def test_what_came_too_late_has_twice_the_time_at_its_next_try_and_no_longer_once_it_came(tmp_path: Path) -> None:
    kept, slow = tmp_path / "config.json", "import time; time.sleep(60)"
    for allowed_s in (0.1, 0.2):
        with pytest.raises(TemporaryError, match=rf"it did not answer within {allowed_s:g} s.*frenzy plan"):
            ask_patiently(slow, {}, kept, timeout_s=0.1)
    assert ask_patiently("""print('{"a": 1}')""", {}, kept) == {"a": 1}
    with pytest.raises(TemporaryError, match=r"within 0\.1 s"):
        ask_patiently(slow, {}, kept, timeout_s=0.1)


def test_what_a_library_prints_beside_the_answer_is_none() -> None:
    program = """print('Downloading'); print('{"a": 1}'); print('bye'); print(5)"""
    assert library_process.ask(program, {}, told=lambda done, of: None) == {"a": 1}


def test_an_answer_counts_though_the_question_was_never_read() -> None:
    program = """import os; os.close(0); print('{"a": 1}')"""
    assert library_process.ask(program, {"much": "x" * 2**20}) == {"a": 1}


@pytest.mark.parametrize(
    "program", ["import sys; sys.exit('no such thing')", "import sys; print('{'); sys.exit('no such thing')"]
)
def test_a_process_that_ends_without_an_answer_is_quoted(program: str) -> None:
    answer = library_process.ask(program, {"much": "x" * 2**20})
    assert answer["error"].endswith("no such thing")


_MEASURED_BY_ITS_OWNER = """
import json

class AutoConfig:
    @classmethod
    def for_model(cls, family, **options):
        return cls()

    def get_text_config(self):
        return self

    def to_json_string(self, use_diff):
        return json.dumps({"model_type": "gpt2", "model_trace": {"problem": "mine"}, "module_tree": []})
"""


def test_what_an_inner_config_says_was_measured_is_not_believed_and_a_broken_answer_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text(_MEASURED_BY_ITS_OWNER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked, folder = ModelSpec(config={"model_type": "wrapper", "text_config": {}}), tmp_path / "cache"
    assert resolve_model_config(asked, cache_folder=folder) == {"model_type": "gpt2"}
    (kept,) = folder.glob("*.json")
    kept.write_text("{", encoding="utf-8")
    assert resolve_model_config(asked, cache_folder=folder) == {"model_type": "gpt2"}


def test_the_process_that_is_asked_has_only_so_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_process, "MOST_MEMORY_BYTES", 256 * 1024**2)
    assert "MemoryError" in library_process.ask("print(len(bytearray(2**30)))", {})["error"]


@pytest.mark.usefixtures("one_config_reader")
def test_whoever_asks_for_a_config_that_another_asks_for_takes_that_answer(tmp_path: Path) -> None:
    given = {"model_type": "gpt2", "n_layer": 3}
    resolve_model_config(ModelSpec(config=given), cache_folder=tmp_path)
    (kept,) = tmp_path.glob("*.json")
    kept.unlink()
    with kept.with_suffix(".lock").open("w") as turn, ThreadPoolExecutor(1) as threads:
        fcntl.flock(turn, fcntl.LOCK_EX)
        second = threads.submit(resolve_model_config, ModelSpec(config=given), cache_folder=tmp_path)
        kept.with_suffix(".draft").write_text(json.dumps({"answer": "the first one's"}))
        kept.with_suffix(".draft").replace(kept)
        fcntl.flock(turn, fcntl.LOCK_UN)
        assert second.result() == {"answer": "the first one's"}


@pytest.mark.usefixtures("one_config_reader")
def test_a_slip_in_a_written_key_is_told_the_field_that_was_meant() -> None:
    with pytest.raises(SpecError) as caught:
        resolve_model_config(ModelSpec(config={**TINY, "num_hiden_layers": 2, "vocabsize": 99}))
    assert [(each.path, each.value, each.allowed) for each in caught.value.violations] == [
        ("model.config.num_hiden_layers", "2", "did you mean num_hidden_layers?"),
        ("model.config.vocabsize", "99", "did you mean vocab_size?"),
    ]


@pytest.mark.usefixtures("one_config_reader")
@pytest.mark.parametrize(
    ("family", "key", "meant"),
    [
        ("llama", "num_kv_heads", "num_key_value_heads"),
        ("llama", "num_layers", "num_hidden_layers"),
        ("llama", "d_model", "hidden_size"),
        ("llama", "ffn_dim", "intermediate_size"),
        ("llama", "hidden_dim", "intermediate_size"),
        ("gpt2", "num_layers", "n_layer"),
        ("qwen3_moe", "experts_per_token", "num_experts_per_tok"),
    ],
)
def test_what_other_families_call_a_size_is_told_the_field_of_this_one(family: str, key: str, meant: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_model_config(ModelSpec(config={"model_type": family, key: 7}))
    assert [(each.path, each.allowed) for each in caught.value.violations] == [
        (f"model.config.{key}", f"did you mean {meant}?")
    ]


@pytest.mark.usefixtures("one_config_reader")
@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"model_type": "mistral", "dim": 5120, "hidden_dim": 13824},  # as in Mistral's own params.json
            {
                "model.config.dim": "did you mean hidden_size?",
                "model.config.hidden_dim": "did you mean intermediate_size?",
            },
        ),
        ({"model_type": "llama", "d_model": 64, "n_embd": 32}, {"model.config.d_model": "did you mean hidden_size?"}),
        (
            {**TINY, "num_layers": 3, "num_hiden_layers": 2},
            {"model.config.num_layers": "did you mean num_hidden_layers?"},
        ),
        (
            {"model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 64},
            {"model.config.kv_channels": "did you mean head_dim?"},
        ),
    ],
)
def test_a_field_is_offered_for_one_key(config: dict[str, object], told: dict[str, str]) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_model_config(ModelSpec(config=config))
    assert {each.path: each.allowed for each in caught.value.violations} == told


@pytest.mark.usefixtures("one_config_reader")
@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "num_kv_heads": 4, "num_key_value_heads": 4},
        {"model_type": "llama", "num_layers": 32},  # the default, whoever gives it
        {"model_type": "bloom", "n_embed": 128},  # an older name that the class reads
        {"model_type": "gpt_oss", "experts_per_token": 4, "num_experts_per_tok": 4},
        {"model_type": "llama", "n_kv_heads": None},
        {"model_type": "phi", "n_inner": None},
        {"model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128},
        {"model_type": "hunyuan_v1_dense", "attention_head_dim": 128},
    ],
)
def test_another_name_of_a_size_passes_where_the_model_has_that_size(config: dict[str, object]) -> None:
    resolve_model_config(ModelSpec(config=config))


@pytest.mark.usefixtures("one_config_reader")
def test_what_a_folder_was_read_as_hides_no_slip_in_the_same_words_written_by_hand(tmp_path: Path) -> None:
    slip = {**TINY, "num_hiden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(slip))
    resolve_model_config(ModelSpec(path=str(tmp_path)), cache_folder=tmp_path / "kept")
    with pytest.raises(SpecError):
        resolve_model_config(ModelSpec(config=slip), cache_folder=tmp_path / "kept")


@pytest.mark.usefixtures("one_config_reader")
@pytest.mark.parametrize(
    ("family", "beside"),
    [
        ("llama", {"torch_dtype": "float32", "rope_scaling": None, "rope_theta": 1e4, "auto_map": {}, "layer_norm": 1}),
        ("gpt2", {"hidden_size": 64, "n_ctx": 64, "task_specific_params": {}, "gradient_checkpointing": False}),
        ("gpt2", {"eos_token_ids": [0], "resid_drop": 0.1}),
        ("bart", {"classif_dropout": 0.0}),
        ("exaone4", {"_sliding_window_pattern": 4}),
        (
            "gemma3_text",
            {
                "sliding_window_pattern": 6,
                "boi_token_id": 1,
                "hidden_activation": "gelu",
                "cache_implementation": "hybrid",
            },
        ),
    ],
)
def test_other_names_of_fields_and_keys_of_real_configs_are_no_slips(family: str, beside: dict[str, object]) -> None:
    resolve_model_config(ModelSpec(config={"model_type": family, "architectures": ["X"], **beside}))
