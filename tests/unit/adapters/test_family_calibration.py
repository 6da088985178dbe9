"""One family's coefficients read alone: the same as in the whole calibration, hence the same plans."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from frenzy.adapters.calibration_file import (
    calibration_of_release,
    default_calibration,
    family_calibration,
    load_calibration,
)
from frenzy.core.memory.activation_coefficients import Loss
from frenzy.core.memory.calibration import Calibration
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.hardware import DeviceKind
from frenzy.evaluation.datasets import RecordedRelease, release_calibrations
from frenzy.evaluation.predict import predict
from frenzy.evaluation.read_own import run_of


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_a_familys_own_calibration_is_its_part_of_the_whole(family: str) -> None:
    whole, own = default_calibration(), family_calibration(family)

    assert own.activations == tuple(each for each in whole.activations if each.family == family)
    assert replace(own, activations=whole.activations) == whole


def test_a_family_without_coefficients_gets_the_whole_which_names_those_there_are() -> None:
    assert family_calibration("unheard-of") == default_calibration()


def test_a_script_with_another_release_is_predicted_with_its_coefficients_or_refused() -> None:
    assert calibration_of_release("5.99") is default_calibration()
    assert calibration_of_release("4.48.3") == load_calibration("transformers-4.48")
    assert calibration_of_release("4.57.1") == load_calibration("transformers-4.48")
    assert calibration_of_release("4.45.2") == load_calibration("transformers-4.45")
    assert calibration_of_release("4.41.2") == load_calibration("transformers-4.41")
    assert calibration_of_release("4.44.2") == load_calibration("transformers-4.41")


@pytest.mark.parametrize("release", ["4.46.1", "4.47.1"])
def test_from_4_46_on_logits_stay_beside_the_copies_that_the_loss_makes(release: str) -> None:
    newer, older = load_calibration("transformers-4.48").activations, load_calibration("transformers-4.45").activations
    found = calibration_of_release(release)
    assert found.activations[: len(newer)] == newer
    assert found.activations[len(newer) :] == tuple(each for each in older if each.family == "granite")
    assert RecordedRelease(release, "a row").calibration(release_calibrations()) == found


@pytest.mark.parametrize("release", ["4.40.2", "3.0"])
def test_a_release_that_keeps_more_than_any_that_was_traced_is_never_said_to_fit(release: str) -> None:
    with pytest.raises(PermanentError, match="No coefficients of transformers") as refused:
        calibration_of_release(release)
    assert refused.value.reason.remedy is not None
    assert "Leave model out" in refused.value.reason.remedy


def test_an_older_release_keeps_more_of_the_logits() -> None:
    def at_loss(calibration: Calibration) -> float:
        of_llama = (each for each in calibration.activations if each.family == "llama" and each.loss is Loss.TORCH)
        plain = [each for each in of_llama if not each.checkpointing and each.kind is DeviceKind.CUDA]
        return max(each.outside.vocab + max(part.vocab for part in each.in_loss) for each in plain)

    assert at_loss(calibration_of_release("4.48.1")) > at_loss(default_calibration())


@pytest.mark.parametrize("release", ["4.41.2", "4.44.2"])
@pytest.mark.parametrize("model", ["Llama-3-8B", "Qwen2.5-7B"])
def test_what_a_release_from_4_41_to_4_44_keeps_more_is_not_said_to_fit(model: str, release: str) -> None:
    def peak_bytes(calibration: Calibration, attention: str, checkpointing: str) -> int:
        cells = {"model": model, "framework": "deepspeed", "micro_batch": "4", "sequence_length": "4096"}
        settings = {"zero_stage": "3", "num_gpus": "8", "attention": attention, "checkpointing": checkpointing}
        return predict(run_of({**cells, **settings}, calibration)).peak_allocated_bytes

    older, own = calibration_of_release(release), default_calibration()
    for attention, checkpointing in itertools.product(("eager", "sdpa"), ("true", "false")):
        assert peak_bytes(older, attention, checkpointing) >= peak_bytes(own, attention, checkpointing)
    # Keys and values are repeated for each head that shares them, and kept.
    assert peak_bytes(older, "sdpa", "false") > 1.03 * peak_bytes(own, "sdpa", "false")
