"""Models of unknown families, by the parameters their module registers."""

from __future__ import annotations

from typing import Any

import pytest

from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import model_shape
from frenzy.core.values.errors import PermanentError, ReasonCode

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
    assert [each.name for each in shape.layer if each.is_linear] == ["attention.weight", "up.weight", "down.weight"]
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


@pytest.mark.parametrize(
    ("rows", "fields", "said"),
    [
        ([TABLE, NORM, OUTPUT], {}, "no numbered layers"),
        ([TABLE, *layer(0), *layer(1, inner=400), NORM], {}, "layer 1 of model.blocks is not like the first"),
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
