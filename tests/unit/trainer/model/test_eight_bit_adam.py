"""8-bit moments go through a checkpoint's fp32 and come back as the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frenzy.trainer.model.eight_bit_adam import (
    BLOCK_ELEMENTS,
    is_eight_bit,
    make_adamw_8bit,
    moments,
    quantised,
    store_moment,
)

SETTINGS = {"lr": 1e-2, "betas": [0.9, 0.999], "weight_decay": 0.01}


def stepped(numel: int, num_steps: int = 3) -> tuple[Any, torch.nn.Parameter]:
    torch.manual_seed(numel)
    parameter = torch.nn.Parameter(torch.randn(numel))
    optimizer = make_adamw_8bit([parameter], SETTINGS)
    for step in range(num_steps):
        parameter.grad = torch.sin(torch.arange(numel) * (step + 1.0)) * torch.logspace(-6, 0, numel)
        optimizer.step()
    return optimizer, parameter


def as_fp32(moment: Any) -> torch.Tensor:
    values: torch.Tensor = moment.cpu()
    return values


@settings(max_examples=25, deadline=None)
@given(numel=st.integers(4096, 6000))
def test_moments_come_back_as_the_same_bytes_and_scales(numel: int) -> None:
    optimizer, parameter = stepped(numel)
    state, again = optimizer.state[parameter], dict[str, Any]()
    for name, moment in moments(state).items():
        store_moment(again, name, as_fp32(moment), torch.device("cpu"))
    for key in ("state1", "state2", "qmap1", "qmap2"):
        assert torch.equal(again[key], state[key]), key
    for key in ("absmax1", "absmax2"):
        torch.testing.assert_close(again[key], state[key], rtol=2e-7, atol=0)


def test_moments_are_as_the_library_reads_them() -> None:
    from bitsandbytes.functional import dequantize_blockwise

    optimizer, parameter = stepped(5000)
    state = optimizer.state[parameter]
    for key, name in (("1", "exp_avg"), ("2", "exp_avg_sq")):
        expected = dequantize_blockwise(
            state[f"state{key}"], absmax=state[f"absmax{key}"], code=state[f"qmap{key}"], blocksize=BLOCK_ELEMENTS
        )
        assert torch.equal(as_fp32(moments(state)[name]), expected)


@given(start=st.integers(0, 4999), data=st.data())
def test_any_window_of_a_moment_reads_as_a_slice(start: int, data: st.DataObject) -> None:
    optimizer, parameter = stepped(5000, num_steps=1)
    moment = moments(optimizer.state[parameter])["exp_avg"]
    length = data.draw(st.integers(0, 5000 - start))
    window = moment.narrow(0, start, length)
    assert window.numel() == length
    assert torch.equal(as_fp32(window), as_fp32(moment)[start : start + length])


@pytest.mark.parametrize("signed", [True, False])
def test_values_of_other_blocks_are_rounded_within_a_few_percent(signed: bool) -> None:
    from bitsandbytes.functional import create_dynamic_map

    torch.manual_seed(0)
    values = torch.randn(3 * 2**20 // 2)
    values = values if signed else values.square()
    table = create_dynamic_map(signed=signed)
    codes, scales = quantised(values, table)
    back = table[codes.long()] * scales.repeat_interleave(BLOCK_ELEMENTS)[: values.numel()]
    assert torch.linalg.norm(back - values) < 0.02 * torch.linalg.norm(values)


def test_all_zero_blocks_stay_zero() -> None:
    state: dict[str, Any] = {}
    store_moment(state, "exp_avg", torch.zeros(4096), torch.device("cpu"))
    assert torch.equal(as_fp32(moments(state)["exp_avg"]), torch.zeros(4096))


def test_small_partitions_keep_their_moments_in_fp32() -> None:
    optimizer, parameter = stepped(4095)
    assert is_eight_bit(optimizer)
    assert {name: each.dtype for name, each in moments(optimizer.state[parameter]).items()} == {
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float32,
    }
    assert not is_eight_bit(torch.optim.AdamW([parameter]))
