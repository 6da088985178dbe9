"""Which coefficients hold for a setting, and what they amount to for a token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.marp_values import llama_config

from frenzy.core.memory.activation_coefficients import (
    ActivationCoefficients,
    ActivationSetting,
    AdapterSetting,
    Attention,
    Loss,
    TokenBytes,
    find_coefficients,
)
from frenzy.core.models.shape import model_shape
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision

LLAMA = model_shape(llama_config())
MIXTRAL = model_shape({**llama_config(), "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
PLAIN = ActivationSetting(precision=Precision.BF16, checkpointing=False, kind=DeviceKind.CUDA)


def coefficients(setting: ActivationSetting = PLAIN, **changes: object) -> ActivationCoefficients:
    made = ActivationCoefficients(
        family="llama",
        precision=setting.precision,
        checkpointing=setting.checkpointing,
        attention_dropout=False,
        hidden_dropout=False,
        layer=TokenBytes(hidden=16),
        outside=TokenBytes(hidden=8, vocab=4),
        in_loss=(TokenBytes(vocab=8), TokenBytes(hidden=6, vocab=-4)),
        in_backward=(TokenBytes(hidden=20, vocab=-4),),
        kind=setting.kind,
        attention=setting.attention,
        loss=setting.loss,
        adapters=setting.adapters,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_half_precisions_share_their_coefficients() -> None:
    known = coefficients()
    assert find_coefficients([known], LLAMA, replace(PLAIN, precision=Precision.FP16)) == known
    assert find_coefficients([known], LLAMA, replace(PLAIN, precision=Precision.FP32)) is None


def test_flash_attention_is_torchs_own_on_a_card_unless_it_was_traced() -> None:
    own, flash = coefficients(), coefficients(replace(PLAIN, attention=Attention.FLASH_2))
    asked = replace(PLAIN, attention=Attention.FLASH_2)
    assert find_coefficients([own], LLAMA, asked) == own
    assert find_coefficients([own, flash], LLAMA, asked) == flash


def test_a_family_with_eager_attention_only_is_computed_eagerly() -> None:
    eager = coefficients(replace(PLAIN, attention=Attention.EAGER))
    assert find_coefficients([eager], LLAMA, PLAIN) == eager
    assert find_coefficients([eager, coefficients()], LLAMA, PLAIN) == coefficients()


def test_eager_attention_is_never_taken_for_a_fused_kernel() -> None:
    assert find_coefficients([coefficients()], LLAMA, replace(PLAIN, attention=Attention.EAGER)) is None


def test_dropout_of_attention_costs_nothing_in_a_cards_fused_kernel() -> None:
    dropping = replace(LLAMA, attention_dropout=0.1)
    known = coefficients()
    assert find_coefficients([known], dropping, PLAIN) == known
    eager = replace(PLAIN, attention=Attention.EAGER)
    assert find_coefficients([coefficients(eager)], dropping, eager) is None
    masked = coefficients(eager, attention_dropout=True)
    assert find_coefficients([coefficients(eager), masked], dropping, eager) == masked


def test_more_dropout_than_asked_stands_in_when_nothing_is_closer() -> None:
    every = coefficients(attention_dropout=True, hidden_dropout=True)
    assert find_coefficients([every], LLAMA, PLAIN) == every
    assert find_coefficients([every, coefficients()], LLAMA, PLAIN) == coefficients()
    assert find_coefficients([coefficients()], replace(LLAMA, residual_dropout=0.1), PLAIN) is None


def test_adapters_take_the_set_with_the_fewest_further_targets() -> None:
    sets = [
        coefficients(replace(PLAIN, adapters=AdapterSetting(targets=targets)))
        for targets in (("q_proj", "v_proj"), ("k_proj", "o_proj", "q_proj", "v_proj"), ("down_proj", "q_proj"))
    ]
    asked = replace(PLAIN, adapters=AdapterSetting(targets=("k_proj", "q_proj")))
    assert find_coefficients(sets, LLAMA, asked) == sets[1]
    assert find_coefficients(sets, LLAMA, PLAIN) is None
    dropping = replace(asked, adapters=AdapterSetting(targets=("q_proj",), dropout=True))
    assert find_coefficients(sets, LLAMA, dropping) is None


def test_a_fused_loss_changes_the_head_and_nothing_below_it() -> None:
    plain = coefficients()
    fused = coefficients(
        replace(PLAIN, loss=Loss.FUSED),
        outside=TokenBytes(hidden=10),
        in_loss=(TokenBytes(vocab=6),),
        in_backward=(TokenBytes(hidden=18),),
        head_copies=4.0,
    )
    checkpointed = coefficients(replace(PLAIN, checkpointing=True), in_backward=(TokenBytes(hidden=40, vocab=-4),))
    asked = replace(PLAIN, loss=Loss.FUSED, checkpointing=True)
    found = find_coefficients([plain, fused, checkpointed], LLAMA, asked)
    assert found is not None
    assert found.outside == fused.outside
    assert found.head_copies == 4.0
    assert found.in_loss == (TokenBytes(vocab=6), TokenBytes(hidden=4))
    assert found.in_backward == (TokenBytes(hidden=38),)


def test_without_a_traced_fused_loss_there_is_no_answer() -> None:
    assert find_coefficients([coefficients()], LLAMA, replace(PLAIN, loss=Loss.FUSED)) is None


def test_experts_count_by_the_visits_and_the_busiest_by_more_than_its_balanced_share() -> None:
    hidden, inner = MIXTRAL.hidden_size, MIXTRAL.intermediate_size
    assert TokenBytes(expert_hidden=2).per_token(MIXTRAL, 64) == 2 * 2 * hidden
    assert TokenBytes(busiest_intermediate=4).per_token(MIXTRAL, 64) == 4 * inner * 1.25 * 2 / 8
    assert TokenBytes(experts=8, active_experts=1).per_token(MIXTRAL, 64) == 8 * 8 + 2
    assert TokenBytes(experts=8, expert_hidden=2).per_token(LLAMA, 64) == 0


@given(st.integers(1, 8))
def test_the_busiest_expert_never_gets_more_than_every_token(active: int) -> None:
    shape = replace(MIXTRAL, experts_per_token=active)
    assert TokenBytes(busiest_hidden=1).per_token(shape, 64) <= shape.hidden_size


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_adapters_count_by_rank_whatever_the_tensor_parallel_degree(tp: int) -> None:
    assert TokenBytes(adapter_rank=2).per_token(LLAMA, 64, tp, adapter_elements=32) == 64
