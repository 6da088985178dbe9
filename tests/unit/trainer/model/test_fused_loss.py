"""The fused loss is the plain loss: same value, same gradients, whatever the chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trainer.families import config_of
from transformers import AutoConfig, AutoModelForCausalLM

from frenzy.core.memory.loss_chunks import loss_chunk_tokens
from frenzy.core.planning.launchable import TRAINED_FAMILIES
from frenzy.trainer.model.fused_loss import IGNORED, LinearCrossEntropy, fuse_loss, shifted_labels
from frenzy.trainer.outcome import BadInputError

WIDTH, VOCABULARY = 8, 13


def plain_loss(hidden: Any, weight: Any, bias: Any, labels: Any, scale: float) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).float() * scale
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 20),
    chunk=st.integers(1, 25),
    scale=st.sampled_from([1.0, 0.25, 3.0]),
    biased=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_value_and_gradients_are_the_plain_ones_for_any_chunk(
    tokens: int, chunk: int, scale: float, biased: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(VOCABULARY, (tokens,), generator=draw)
    labels[1:][torch.rand(tokens - 1, generator=draw) < 0.3] = IGNORED
    values = [torch.randn(shape, generator=draw) for shape in ((tokens, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))]
    found = []
    for compute in (plain_loss, lambda *given: LinearCrossEntropy.apply(*given, chunk)):
        hidden, weight, bias = (each.clone().requires_grad_() for each in values)
        loss = compute(hidden, weight, bias if biased else None, labels, scale)
        (2 * loss).backward()
        found.append([loss.detach(), hidden.grad, weight.grad, *([bias.grad] if biased else [])])
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=2e-5)  # sums in fp32, in another order


def test_a_frozen_matrix_gets_no_gradient_and_a_second_use_is_refused() -> None:
    hidden, weight = torch.randn(4, WIDTH, requires_grad=True), torch.randn(VOCABULARY, WIDTH)
    loss = LinearCrossEntropy.apply(hidden, weight, None, torch.zeros(4, dtype=torch.long), 1.0, 2)
    loss.backward(retain_graph=True)
    assert hidden.grad is not None
    assert weight.grad is None
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_it_is_no_less_exact_than_the_plain_loss(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exact = [torch.randn(64, 32), torch.randn(97, 32) / 6]
    labels = torch.randint(97, (64,))
    errors = []
    for compute in (plain_loss, lambda *given: LinearCrossEntropy.apply(*given, 16)):
        rounded = [each.to(dtype).requires_grad_() for each in exact]
        compute(*rounded, None, labels, 1.0).backward()
        true = [each.detach().float().requires_grad_() for each in rounded]
        plain_loss(*true, None, labels, 1.0).backward()
        errors.append([torch.linalg.norm(each.grad.float() - of.grad) for each, of in zip(rounded, true, strict=True)])
    for plain, fused in zip(*errors, strict=True):
        assert fused <= 1.5 * plain


def test_under_autocast_it_computes_in_the_autocast_format() -> None:
    hidden, weight = torch.randn(6, WIDTH, requires_grad=True), torch.randn(VOCABULARY, WIDTH, requires_grad=True)
    labels = torch.arange(6)
    with torch.autocast("cpu", torch.bfloat16):
        loss = LinearCrossEntropy.apply(hidden, weight, None, labels, 1.0, 4)
        expected = plain_loss(hidden, weight, None, labels, 1.0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), abs=1e-3)
    loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)


def test_labels_are_shifted_inside_each_sequence() -> None:
    assert shifted_labels(torch.tensor([[1, 2, 3], [4, 5, 6]])).tolist() == [2, 3, IGNORED, 5, 6, IGNORED]


@pytest.mark.parametrize("family", [name for name, known in TRAINED_FAMILIES.items() if known.fused_loss])
def test_a_familys_model_has_the_same_loss_and_gradients(family: str) -> None:
    given = config_of(family)
    config = AutoConfig.for_model(given.pop("model_type"), **given, bos_token_id=0, eos_token_id=0)  # type: ignore[no-untyped-call]
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tokens = torch.randint(260, (2, 24))
    labels = tokens.masked_fill(torch.rand(tokens.shape) < 0.2, IGNORED)
    found = []
    for fused in (False, True):
        if fused:
            fuse_loss(model)
        model.zero_grad()
        loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        loss.backward()
        found.append((loss.detach(), {name: each.grad for name, each in model.named_parameters()}))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert model(input_ids=tokens, use_cache=False).logits.shape == (2, 24, 260)


def test_a_model_that_caps_its_logits_is_refused() -> None:
    given = config_of("gemma2")
    config = AutoConfig.for_model(given.pop("model_type"), **given, bos_token_id=0, eos_token_id=0)  # type: ignore[no-untyped-call]
    with pytest.raises(BadInputError, match="caps its logits"):
        fuse_loss(AutoModelForCausalLM.from_config(config, attn_implementation="eager"))


@given(num_tokens=st.integers(1, 10**6), vocab_size=st.integers(1, 10**6))
def test_a_chunk_is_bounded_and_a_multiple_of_128_tokens(num_tokens: int, vocab_size: int) -> None:
    chunk = loss_chunk_tokens(num_tokens, vocab_size)
    assert 1 <= chunk <= num_tokens
    assert chunk == num_tokens or chunk % 128 == 0
    assert chunk <= 128 or chunk * vocab_size <= 2**26
