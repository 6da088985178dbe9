"""Models of unknown families, by the parameters their module registers."""

from __future__ import annotations

from typing import Any

import pytest

from frenzy.core.models.module_tree import MODULE_TREE, LayerPattern, layer_pattern
from frenzy.core.models.shape import model_shape
from frenzy.core.models.trainable import trained_part
from frenzy.core.values.errors import PermanentError, ReasonCode
from frenzy.core.values.job import LoraSpec

Row = list[Any]


def layer(index: int, *, inner: int = 200) -> list[Row]:
    return [
        [f"model.blocks.{index}.norm.weight", [96], False],
        [f"model.blocks.{index}.attention.weight", [288, 96], True],
        [f"model.blocks.{index}.up.weight", [inner, 96], True],
        [f"model.blocks.{index}.down.weight", [96, inner], True],
    ]


def config(rows: list[Row], **fields: Any) -> dict[str, Any]:
    return {"model_type": "new", "num_attention_heads": 4, MODULE_TREE: rows, **fields}


TABLE: Row = ["model.table.weight", [301, 96], False]
NORM: Row = ["model.last_norm.weight", [96], False]
OUTPUT: Row = ["head.weight", [301, 96], True]
PLAIN = [TABLE, *layer(0), *layer(1), *layer(2), NORM, OUTPUT]


def test_embeddings_equal_layers_and_a_head_make_a_shape() -> None:
    shape = model_shape(config(PLAIN))
    assert (shape.family, shape.num_layers, shape.hidden_size, shape.vocab_size) == ("new", 3, 96, 301)
    assert shape.num_parameters == sum(row[1][0] * (row[1] + [1])[1] for row in PLAIN)
    assert [each.name for each in shape.layer if each.is_linear] == ["attention", "up", "down"]
    assert shape.intermediate_size == 288


def test_without_an_output_matrix_the_embedding_is_tied() -> None:
    assert not model_shape(config(PLAIN)).tied_embeddings
    assert model_shape(config(PLAIN[:-1])).tied_embeddings


def test_the_config_says_what_parameters_cannot() -> None:
    shape = model_shape(
        config(PLAIN, num_key_value_heads=2, head_dim=32, intermediate_size=200, n_positions=64, attention_dropout=0.1)
    )
    assert (shape.key_value_width, shape.query_width, shape.intermediate_size) == (64, 128, 200)
    assert (shape.max_positions, shape.attention_dropout) == (64, 0.1)


def test_first_layers_of_their_own_count_with_the_embeddings() -> None:
    rows = [TABLE, *layer(0, inner=400), *layer(1), *layer(2), *layer(3), NORM, OUTPUT]
    shape = model_shape(config(rows))
    assert shape.num_layers == 3
    assert shape.num_parameters == sum(row[1][0] * (row[1] + [1])[1] for row in rows)
    assert [each.name for each in shape.embeddings][1:3] == ["model.blocks.0.norm.weight", "model.blocks.0.attention"]


def test_layers_that_come_again_in_turn_are_one_layer() -> None:
    rows = [TABLE, *(row for at in range(6) for row in layer(at, inner=400 if at % 2 else 200)), NORM, OUTPUT]
    shape = model_shape(config(rows))
    assert (shape.num_layers, len(shape.layer)) == (3, 8)
    assert shape.num_parameters == sum(row[1][0] * (row[1] + [1])[1] for row in rows)
    assert layer_pattern(rows) == LayerPattern("model.blocks", 0, 2, 3)


def test_experts_that_a_token_does_not_visit_are_told_apart() -> None:
    def expert(at: int) -> list[Row]:
        return [*layer(at), [f"model.blocks.{at}.mlp.experts.up", [4, 96, 50], False]]

    rows = [TABLE, *expert(0), *expert(1), NORM, OUTPUT]
    shape = model_shape(config(rows, num_local_experts=4, num_experts_per_tok=1))
    assert shape.num_inactive_parameters == 2 * 3 * 96 * 50
    assert model_shape(config(rows)).num_inactive_parameters == 0


@pytest.mark.parametrize(
    ("rows", "fields", "said"),
    [
        ([TABLE, NORM, OUTPUT], {}, "no numbered layers"),
        ([TABLE, *layer(0), *layer(1, inner=400), NORM], {}, "layers model.blocks.* are neither alike nor come again"),
        ([TABLE, *layer(0), NORM, *layer(1)], {}, "mixed with others"),
        ([*layer(0), *layer(1), NORM], {}, "no embedding"),
        (PLAIN, {"num_attention_heads": 7}, "heads that divide the width 96"),
        (PLAIN, {"num_attention_heads": None}, "heads that divide the width 96"),
        ([["model.table.weight"]], {}, "not enough values"),
    ],
)
def test_anything_else_is_refused_with_what_is_in_the_way(rows: list[Row], fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PermanentError, match=said) as caught:
        model_shape(config(rows, **fields))
    assert caught.value.reason.code is ReasonCode.MODEL_NOT_SUPPORTED
    assert "frenzy marp trace" in (caught.value.reason.remedy or "")


@pytest.mark.parametrize(
    ("targets", "adapted"), [((), ["0.self_attn.q_proj", "1.self_attn.q_proj"]), (("up",), ["0.up"])]
)
def test_adapters_are_on_the_linear_maps_that_peft_finds_by_the_same_names(
    targets: tuple[str, ...], adapted: list[str]
) -> None:
    def turn(index: int, *more: Row) -> list[Row]:
        return [[f"model.blocks.{index}.self_attn.q_proj.weight", [96, 96], True], *more]

    ups: list[list[Row]] = [[[f"model.blocks.{index}.up.weight", [200, 96], True]] for index in (0, 2)]
    rows = [TABLE, *turn(0, *ups[0]), *turn(1), *turn(2, *ups[1]), *turn(3), NORM, OUTPUT]
    trained = trained_part(model_shape(config(rows)), LoraSpec(rank=4, target_modules=targets))
    assert [each.name.removesuffix(".lora_A") for each in trained.layer[::2]] == adapted


def test_adapters_on_nothing_are_refused_with_the_names_of_the_linear_maps() -> None:
    with pytest.raises(PermanentError) as caught:
        trained_part(model_shape(config(PLAIN)), LoraSpec(target_modules=("q_proj",)))
    assert caught.value.reason.remedy == "Choose among attention, up, down."
