"""Plain PyTorch and FSDP: figures that can be worked out by hand, and what may never happen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.memory.activation_coefficients import ActivationCoefficients, TokenBytes
from frenzy.core.memory.torch_kernels import Sharding, TorchOptimizer, TorchRun, predict_torch_memory
from frenzy.core.models.shape import model_shape
from frenzy.core.models.trainable import trained_part
from frenzy.core.models.weight_storage import WeightStorage
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import LoraSpec, Precision

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
SHAPE = model_shape(LLAMA)
WORKSPACES = 2 * round(8.125 * 2**20)
COEFFICIENTS = ActivationCoefficients(
    family="llama",
    precision=Precision.BF16,
    checkpointing=True,
    attention_dropout=False,
    hidden_dropout=False,
    layer=TokenBytes(hidden=2.0),
    outside=TokenBytes(hidden=6.0),
    in_loss=(TokenBytes(vocab=14.0),),
    in_backward=(TokenBytes(hidden=30.0),),
    kind=DeviceKind.CUDA,
)


MANY_LOGITS = replace(COEFFICIENTS, in_loss=(TokenBytes(vocab=1000.0),))


def full(**changes: object) -> TorchRun:
    run = TorchRun(
        shape=SHAPE, trained=trained_part(SHAPE, None), coefficients=COEFFICIENTS, micro_batch=1, sequence_length=8
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def adapted(**changes: object) -> TorchRun:
    lora = LoraSpec(rank=4)
    return full(trained=trained_part(SHAPE, lora), trained_bytes=4, adapter_rank=4, **changes)


def test_sixteen_bit_training_of_few_tokens_peaks_in_the_optimizer_step_at_ten_bytes_a_parameter() -> None:
    """Weights 2, two states 2 each, gradient 2, and the root that AdamW's foreach form makes, 2."""
    found = predict_torch_memory(full())

    assert found.at == "optimizer step"
    assert found.peak_allocated_bytes == 10 * SHAPE.num_parameters + WORKSPACES


def test_the_fused_optimizer_needs_no_temporary() -> None:
    found = predict_torch_memory(full(optimizer=TorchOptimizer.ADAMW_FUSED))

    assert found.peak_allocated_bytes < 10 * SHAPE.num_parameters + WORKSPACES


def test_full_sharding_over_two_gpus_halves_everything_but_the_workspaces() -> None:
    found = predict_torch_memory(full(sharding=Sharding.FULL, num_gpus=2, coefficients=_without_activations()))

    assert found.peak_allocated_bytes == 5 * SHAPE.num_parameters + WORKSPACES


def _without_activations() -> ActivationCoefficients:
    nothing = TokenBytes()
    return replace(COEFFICIENTS, layer=nothing, outside=nothing, in_loss=(nothing,), in_backward=(nothing,))


def test_many_tokens_peak_in_the_loss() -> None:
    found = predict_torch_memory(adapted(micro_batch=64))

    tokens = 64 * 8
    activations = tokens * (4 * 2 * 256 + 6 * 256 + 14 * 1000)
    trained = adapted().num_trained
    assert found.at == "loss"
    assert found.peak_allocated_bytes == 2 * SHAPE.num_parameters + 12 * trained + activations + WORKSPACES


def test_a_loss_that_writes_over_the_logits_saves_its_bytes_for_each_logit() -> None:
    plain = predict_torch_memory(adapted(micro_batch=64))
    in_place = predict_torch_memory(adapted(micro_batch=64, saved_loss_bytes=4))

    assert plain.peak_allocated_bytes - in_place.peak_allocated_bytes == 4 * 64 * 8 * 1000


def test_fsdp_keeps_inputs_and_their_gradients_to_the_end_where_parameters_are_frozen() -> None:
    thin = replace(COEFFICIENTS, in_loss=(TokenBytes(vocab=1.0),))
    sharded = {"micro_batch": 64, "sharding": Sharding.FULL, "num_gpus": 2, "coefficients": thin}
    hooked = predict_torch_memory(adapted(**sharded))
    released = predict_torch_memory(adapted(**sharded, reentrant=False))

    assert hooked.at == "last backward layer"
    assert any(each.name == "inputs' gradients that hooks keep" for each in hooked.terms)
    assert hooked.peak_allocated_bytes > released.peak_allocated_bytes


@pytest.mark.parametrize("sharding", [Sharding.FULL, Sharding.GRADIENTS])
def test_fsdp_keeps_whole_gradients_until_the_last_micro_batch(sharding: Sharding) -> None:
    """In the format FSDP computes in, on each rank; its reductions come with the last micro-batch."""
    run = full(trained_bytes=4, sharding=sharding, num_gpus=4, micro_batch=64, coefficients=MANY_LOGITS)
    once, summed = (predict_torch_memory(replace(run, accumulation=each)) for each in (1, 16))

    assert summed.peak_allocated_bytes - once.peak_allocated_bytes == 2 * run.num_trained


def test_saving_on_the_card_has_the_whole_model_beside_the_shards_and_the_outermost_unit() -> None:
    """Shards of weights and two states, 12 bytes over 4; each tensor's clone; embeddings and head gathered in fp32."""
    run = full(sharding=Sharding.FULL, num_gpus=4, trained_bytes=4, layer_bytes=4, outside_bytes=4, saves_on_card=True)
    outermost = 4 * (2 * SHAPE.vocab_size * SHAPE.hidden_size + SHAPE.hidden_size)
    found, zeroed = (predict_torch_memory(replace(run, zeroes_gradients=each)) for each in (False, True))

    assert found.at == zeroed.at == "saving"
    assert found.peak_allocated_bytes == (3 + 4) * SHAPE.num_parameters + outermost + WORKSPACES
    assert zeroed.peak_allocated_bytes - found.peak_allocated_bytes == SHAPE.num_parameters


@pytest.mark.parametrize("changed", [{"num_gpus": 1}, {"sharding": Sharding.NONE}, {"saves_on_card": False}])
def test_what_is_not_divided_or_saved_elsewhere_is_not_gathered_to_be_saved(changed: dict[str, object]) -> None:
    run = full(sharding=Sharding.FULL, num_gpus=4, trained_bytes=4, layer_bytes=4, saves_on_card=True)

    assert predict_torch_memory(replace(run, **changed)).at != "saving"  # type: ignore[arg-type]


def test_one_gpu_keeps_the_sums_of_gradients_in_their_own_format() -> None:
    run = full(trained_bytes=4, micro_batch=64, coefficients=MANY_LOGITS)
    once, summed = (predict_torch_memory(replace(run, accumulation=each)) for each in (1, 2))

    assert summed.peak_allocated_bytes - once.peak_allocated_bytes == 4 * run.num_trained


def test_quantised_weights_take_less_than_plain_ones() -> None:
    plain = predict_torch_memory(adapted())
    quantised = predict_torch_memory(adapted(storage=WeightStorage.NF4_DOUBLE))

    assert quantised.peak_allocated_bytes < plain.peak_allocated_bytes


RUNS = st.builds(
    lambda is_adapted, batch, length, sharding, gpus, storage, optimizer, summed: (adapted if is_adapted else full)(
        micro_batch=batch,
        sequence_length=length,
        sharding=sharding,
        num_gpus=gpus,
        storage=storage if is_adapted else WeightStorage.PLAIN,
        optimizer=optimizer,
        accumulation=summed,
    ),
    st.booleans(),
    st.integers(1, 64),
    st.integers(8, 2048),
    st.sampled_from(Sharding),
    st.integers(1, 16),
    st.sampled_from(WeightStorage),
    st.sampled_from(TorchOptimizer),
    st.integers(1, 4),
)


@given(RUNS)
def test_the_terms_sum_to_the_peak_and_none_is_negative(run: TorchRun) -> None:
    found = predict_torch_memory(run)

    assert sum(each.num_bytes for each in found.terms) == found.peak_allocated_bytes
    assert all(each.num_bytes > 0 for each in found.terms)


@given(RUNS, st.integers(1, 8))
def test_more_tokens_never_need_less(run: TorchRun, times: int) -> None:
    larger = replace(run, micro_batch=run.micro_batch * times)

    assert predict_torch_memory(larger).peak_allocated_bytes >= predict_torch_memory(run).peak_allocated_bytes


@given(RUNS)
def test_more_gpus_never_need_more_on_each_of_them(run: TorchRun) -> None:
    if run.num_gpus < 2:
        return
    wider = replace(run, num_gpus=2 * run.num_gpus)

    assert predict_torch_memory(wider).peak_allocated_bytes <= predict_torch_memory(run).peak_allocated_bytes


@pytest.mark.parametrize("hopper", [False, True])
def test_workspaces_follow_the_card(hopper: bool) -> None:
    found = predict_torch_memory(full(hopper=hopper))

    workspace = next(each for each in found.terms if each.name == "cuBLAS workspaces")
    assert workspace.num_bytes == (64 * 2**20 if hopper else WORKSPACES)
