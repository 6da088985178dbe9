"""A run that stops and goes on, on the same or another layout, is the run that never stopped."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.trainer.checkpoint_ranks import (
    Setup,
    resume_and_save,
    run_ranks,
    train_and_save,
    train_state,
    whole_state,
)

from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.checkpoint.store import PreparedCheckpoint, prepare_resume

SAVED, LAST = 3, 5
LAYOUTS = [(world_size, stage) for world_size in (1, 2) for stage in (1, 2, 3)]


class Saved:
    """Uninterrupted runs by setup, each with its checkpoint, made once for all tests."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @functools.cache  # noqa: B019  (lives as long as the module's fixture)
    def run(self, setup: Setup) -> tuple[str, list[float]]:
        """Run directory and losses of steps 1 to LAST, saved at SAVED."""
        run_dir = str(self._root / f"run-{abs(hash(setup))}")
        return run_dir, run_ranks(setup, train_and_save, run_dir, (SAVED,), LAST)[0]

    def prepared(self, source: Setup, target: Setup) -> PreparedCheckpoint:
        run_dir, _ = self.run(source)
        prepared = prepare_resume(RunPaths(run_dir), Path(run_dir), target.layout)
        assert prepared is not None
        return prepared


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    yield Saved(tmp_path_factory.mktemp("runs"))


def resumed_losses_differ_by(saved: Saved, source: Setup, target: Setup) -> float:
    """Largest difference of the losses after the resume from the uninterrupted run's."""
    _, control = saved.run(source)
    prepared = saved.prepared(source, target)
    state, losses = run_ranks(target, resume_and_save, prepared, "", (), LAST)[0]
    assert state == train_state(SAVED)
    differences = [abs(resumed - straight) for resumed, straight in zip(losses, control[SAVED:], strict=True)]
    return float(max(differences))


@pytest.mark.parametrize("target", LAYOUTS, ids=lambda each: "to-{}x-stage{}".format(*each))
@pytest.mark.parametrize("source", LAYOUTS, ids=lambda each: "from-{}x-stage{}".format(*each))
def test_every_layout_resumes_from_every_other_with_the_very_same_state(
    saved: Saved, source: tuple[int, int], target: tuple[int, int], tmp_path: Path
) -> None:
    before, after = Setup(*source), Setup(*target)
    prepared = saved.prepared(before, after)
    _, losses = run_ranks(after, resume_and_save, prepared, str(tmp_path), (SAVED,), LAST)[0]
    again = prepare_resume(RunPaths(str(tmp_path)), tmp_path, before.layout)
    assert again is not None
    assert_same_tensors(whole_state(prepared), whole_state(again))
    tolerance = 0.0 if source[0] == target[0] else 1e-6  # another number of ranks sums in another order
    assert losses == pytest.approx(saved.run(before)[1][SAVED:], rel=0, abs=tolerance)


def assert_same_tensors(
    first: dict[tuple[str, str], torch.Tensor], second: dict[tuple[str, str], torch.Tensor]
) -> None:
    assert first.keys() == second.keys()
    assert {"fp32", "exp_avg", "exp_avg_sq"} <= {state for state, _ in first}
    assert [key for key in first if not torch.equal(first[key], second[key])] == []


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 4), (2, 1), (4, 2)])
def test_another_accumulation_resumes_in_step_with_the_batches(
    saved: Saved, before: int, after: int, stage: int
) -> None:
    source = Setup(1, stage, accumulation=before)
    assert resumed_losses_differ_by(saved, source, replace(source, accumulation=after)) < 1e-6


@pytest.mark.parametrize(
    ("source", "target", "tolerance"),
    [
        (Setup(2, 2, precision="bf16"), (2, 2), 0.0),
        (Setup(2, 2, precision="bf16"), (1, 3), 5e-4),
        (Setup(1, 3, precision="bf16"), (2, 1), 5e-4),
        (Setup(1, 1, precision="bf16"), (1, 3), 0.0),
        (Setup(2, 1, precision="fp16"), (2, 1), 0.0),
        (Setup(2, 1, precision="fp16"), (1, 3), 5e-4),
        (Setup(1, 3, precision="fp16"), (1, 2), 0.0),
        (Setup(2, 2, precision="autocast"), (2, 2), 0.0),
        (Setup(2, 2, precision="autocast"), (1, 3), 5e-4),
        (Setup(1, 3, precision="autocast"), (2, 1), 5e-4),
    ],
    ids=str,
)
def test_every_precision_resumes_within_its_rounding(
    saved: Saved, source: Setup, target: tuple[int, int], tolerance: float
) -> None:
    assert resumed_losses_differ_by(saved, source, source.on(*target)) <= tolerance


@pytest.mark.parametrize("target", [(2, 2), (1, 3)], ids=str)
@pytest.mark.parametrize(
    "source",
    [
        Setup(2, 2, optimizer="sgd"),
        Setup(2, 2, lora=True),
        Setup(2, 3, lora=True, family="llama"),
        Setup(2, 2, offload=True),
        Setup(2, 3, family="llama"),
        Setup(2, 1, weight_decay_on="matrices"),
        Setup(2, 3, weight_decay_on="matrices"),
        Setup(4, 2, weight_decay_on="matrices", family="llama"),
    ],
    ids=str,
)
def test_momentum_adapters_offload_decay_groups_and_untied_weights_resume(
    saved: Saved, source: Setup, target: tuple[int, int]
) -> None:
    assert resumed_losses_differ_by(saved, source, source.on(*target)) <= 1e-6


@pytest.mark.parametrize(
    ("source", "target", "tolerance"),
    [
        (Setup(2, 1, precision="bf16", fp32_sums=True), (2, 1), 0.0),
        (Setup(2, 1, precision="bf16", fp32_sums=True), (2, 2), 5e-4),
        (Setup(2, 1, precision="bf16", fp32_sums=True), (1, 3), 5e-4),
        (Setup(1, 1, precision="bf16", fp32_sums=True), (1, 3), 5e-4),
        (Setup(1, 3, precision="bf16", fp32_sums=True), (2, 1), 5e-4),
        (Setup(2, 2, precision="bf16", fp32_sums=True), (1, 1), 5e-4),
        (Setup(2, 2, precision="bf16", fp32_sums=True), (2, 2), 0.0),
        (Setup(2, 1, precision="bf16", fp32_sums=True, lora=True), (1, 1), 5e-4),
        (Setup(2, 1, precision="fp16", fp32_sums=True), (2, 1), 0.0),
        (Setup(1, 2, precision="fp16", fp32_sums=True), (1, 3), 5e-4),
    ],
    ids=str,
)
def test_gradients_summed_in_fp32_resume_on_every_stage(
    saved: Saved, source: Setup, target: tuple[int, int], tolerance: float
) -> None:
    assert resumed_losses_differ_by(saved, source, source.on(*target)) <= tolerance


@pytest.mark.parametrize(
    ("whole", "tolerance"),
    [
        (Setup(2, 2), 1e-6),
        (Setup(2, 1, weight_decay_on="matrices"), 1e-6),
        (Setup(2, 1, precision="bf16", fp32_sums=True), 5e-4),
    ],
    ids=str,
)
def test_groups_cut_for_a_card_without_room_train_and_resume_as_whole_ones(
    saved: Saved, whole: Setup, tolerance: float
) -> None:
    cut = replace(whole, group_bytes=2000)
    assert saved.run(cut)[1] == pytest.approx(saved.run(whole)[1], rel=0, abs=tolerance)
    assert resumed_losses_differ_by(saved, whole, cut) <= tolerance
    assert resumed_losses_differ_by(saved, cut, whole.on(1, 3)) <= tolerance


@pytest.mark.parametrize("lora", [False, True])
def test_every_stage_sums_in_fp32_alike(saved: Saved, lora: bool) -> None:
    first, *others = (
        saved.run(Setup(1, stage, precision="bf16", accumulation=8, fp32_sums=True, lora=lora))[1]
        for stage in (1, 2, 3)
    )
    for losses in others:
        assert losses == pytest.approx(first, rel=0, abs=5e-4)


def test_the_momentum_of_sgd_is_kept(saved: Saved) -> None:
    setup = Setup(2, 2, optimizer="sgd")
    states = {state for state, _ in whole_state(saved.prepared(setup, setup))}
    assert states == {"fp32", "momentum_buffer"}


def test_tied_weights_are_stored_once(saved: Saved) -> None:
    names = {name for _, name in whole_state(saved.prepared(Setup(2, 2), Setup(1, 1)))}
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


def test_frozen_weights_come_from_the_checkpoint_not_from_the_fresh_model(saved: Saved) -> None:
    setup = Setup(2, 3, lora=True)
    states = {state for state, _ in whole_state(saved.prepared(setup, setup))}
    assert states == {"fp32", "exp_avg", "exp_avg_sq", "frozen"}


def test_the_loss_scale_goes_on_where_it_was(saved: Saved, tmp_path: Path) -> None:
    source, target = Setup(2, 1, precision="fp16"), Setup(1, 3, precision="fp16")
    prepared = saved.prepared(source, target)
    run_ranks(target, resume_and_save, prepared, str(tmp_path), (SAVED,), LAST)
    again = prepare_resume(RunPaths(str(tmp_path)), tmp_path, source.layout)
    assert again is not None
    first, second = (json.loads(Path(each.state_file).read_text()) for each in (prepared, again))
    assert first == second
    assert first["loss_scaler"]["cur_iter"] == SAVED
    assert first["loss_scaler"]["cur_scale"] != 2**12  # it had moved


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Setup(1, 2, width=32), r"2048 elements, the checkpoint has 1024 of \w+ of transformer\.wte\.weight"),
        (Setup(1, 2, width=8), r"512 elements, the checkpoint has 1024 of \w+ of transformer\.wte\.weight"),
        (Setup(1, 2, family="llama"), "does not hold the trained parameter model.embed_tokens.weight"),
    ],
    ids=["larger", "smaller", "other-family"],
)
def test_another_model_than_the_saved_one_is_refused(saved: Saved, other: Setup, stage: int, words: str) -> None:
    target = other.on(1, stage)
    with pytest.raises(AssertionError, match=rf"ContractError.*{words}"):
        run_ranks(target, resume_and_save, saved.prepared(Setup(1, 2), target), "", (), LAST)


@pytest.mark.parametrize("stage", [1, 3])
def test_dropout_goes_on_with_the_numbers_it_would_have_drawn(saved: Saved, stage: int) -> None:
    setup = Setup(2, stage, dropout=0.1)
    assert resumed_losses_differ_by(saved, setup, setup) == 0.0


def test_a_new_rank_draws_the_same_numbers_on_every_resume(saved: Saved) -> None:
    source, target = Setup(1, 2, dropout=0.1), Setup(2, 2, dropout=0.1)
    first, second = (
        run_ranks(target, resume_and_save, saved.prepared(source, target), "", (), LAST)[0] for _ in range(2)
    )
    assert first == second


LLAMA = Setup(1, 2, family="llama")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (LLAMA.on(2, 1, tp=2), LLAMA.on(2, 3, tp=2)),
        (LLAMA.on(2, 3, tp=2), LLAMA.on(2, 2, tp=2)),
        (LLAMA.on(2, 1, tp=2), LLAMA.on(2, 2)),
        (LLAMA.on(2, 3, tp=2), LLAMA.on(1, 1)),
        (LLAMA.on(1, 2), LLAMA.on(2, 1, tp=2)),
        (LLAMA.on(2, 3), LLAMA.on(2, 3, tp=2)),
    ],
    ids=str,
)
def test_another_tensor_parallel_degree_resumes(saved: Saved, source: Setup, target: Setup) -> None:
    assert resumed_losses_differ_by(saved, source, target) <= 1e-6


def test_four_ranks_of_two_by_two_resume_on_one(saved: Saved) -> None:
    assert resumed_losses_differ_by(saved, LLAMA.on(4, 2, tp=2), LLAMA.on(1, 3)) <= 1e-6
    assert resumed_losses_differ_by(saved, LLAMA.on(1, 2), LLAMA.on(4, 3, tp=2)) <= 1e-6
