"""A model of a family without a closed form is traced once, apart from the caller; what is found is kept."""

from __future__ import annotations

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from frenzy.adapters.model_config import resolve_model
from frenzy.adapters.traced_config import place_to_trace, planned_config
from frenzy.core.memory.model_trace import MODEL_TRACE, trace_in
from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import model_shape
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.job import ModelSpec, TrainingSpec

TRAINING = TrainingSpec(max_steps=1)
WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 300}
STABLELM = {"model_type": "stablelm", **WIDTHS, "num_key_value_heads": 2, "num_hidden_layers": 2}


@pytest.mark.usefixtures("one_config_reader")
def test_a_known_family_is_not_traced() -> None:
    model = ModelSpec(config={"model_type": "llama", **WIDTHS, "num_key_value_heads": 2})
    assert planned_config(model, TRAINING)[1].keys().isdisjoint({MODULE_TREE, MODEL_TRACE})


@pytest.mark.thorough  # it traces a model
def test_another_family_is_traced_with_its_progress_and_what_is_found_is_kept(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    model, config = planned_config(
        ModelSpec(config=STABLELM), TRAINING, cache_folder=tmp_path, told=lambda done, of: told.append((done, of))
    )
    trace = trace_in(config)
    assert trace is not None and len(trace.activations) == 4
    assert told == [(done, 4) for done in range(4)]
    assert model_shape(config).num_layers == 2
    assert planned_config(model, TRAINING, cache_folder=tmp_path, told=lambda done, of: told.clear())[1] == config
    assert len(told) == 4
    (kept,) = tmp_path.glob("trace-*.json")
    kept.unlink()
    with kept.with_suffix(".lock").open("w") as turn, ThreadPoolExecutor(1) as threads:
        fcntl.flock(turn, fcntl.LOCK_EX)
        second = threads.submit(planned_config, model, TRAINING, cache_folder=tmp_path)
        kept.with_suffix(".draft").write_text(json.dumps({"trace": "of the first one"}))
        kept.with_suffix(".draft").replace(kept)
        fcntl.flock(turn, fcntl.LOCK_UN)
        assert second.result()[1]["trace"] == "of the first one"


def test_whoever_traces_holds_one_of_two_places_that_all_of_a_machine_share(tmp_path: Path) -> None:
    with place_to_trace(tmp_path / "trace-mine.json"):
        (place,) = tmp_path.glob("tracing-*.lock")
        assert place.name in ("tracing-0.lock", "tracing-1.lock")
        with place.open("w") as same, pytest.raises(BlockingIOError):
            fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with place.open("w") as same:
        fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.usefixtures("one_config_reader")
def test_what_a_user_says_was_measured_is_not_believed() -> None:
    given = {**STABLELM, MODEL_TRACE: {"problem": "mine"}, MODULE_TREE: [["mine", [1], False]]}
    config = resolve_model(ModelSpec(config=given))[1]
    assert config.keys().isdisjoint({MODULE_TREE, MODEL_TRACE})


@pytest.mark.thorough  # it traces a model
def test_a_model_that_cannot_be_built_here_is_refused_with_what_the_library_said() -> None:
    config = planned_config(ModelSpec(config={"model_type": "t5"}), TRAINING)[1]
    assert config.keys().isdisjoint({MODULE_TREE, MODEL_TRACE})
    with pytest.raises(
        PermanentError, match="'t5' is not a family .* makes no model here: Unrecognized configuration"
    ) as said:
        model_shape(config)
    assert "AfmoeConfig" not in str(said.value)
