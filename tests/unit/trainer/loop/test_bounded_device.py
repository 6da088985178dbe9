"""A rehearsal on a real GPU has no more memory than the GPU type that it is for, and gives the device back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from frenzy.trainer.loop.worker import RankContext, _bounded


class OutOfMemory(Exception):
    """As torch's, of a device that is played."""


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the allocator of a device of 100 bytes was told, in order."""
    told: list[float] = []

    def set_fraction(fraction: float, card: int) -> None:
        assert card == 3
        told.append(fraction)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda card: SimpleNamespace(total_memory=100))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_fraction)
    return told


def context(gpu_bytes: int, *, is_virtual: bool = False, rehearses: bool = True) -> RankContext:
    spec = SimpleNamespace(rehearsal=object() if rehearses else None, gpu=SimpleNamespace(memory_bytes=gpu_bytes))
    return cast(RankContext, cast(Any, SimpleNamespace(spec=spec, is_virtual=is_virtual, local_rank=3)))


def test_the_whole_device_is_given_back_after_a_rehearsal(fractions: list[float]) -> None:
    with _bounded(context(40)):
        assert fractions == [0.4]
    assert fractions == [0.4, 1.0]


def test_the_whole_device_is_given_back_after_a_rehearsal_that_failed(fractions: list[float]) -> None:
    with pytest.raises(OutOfMemory), _bounded(context(40)):
        raise OutOfMemory
    assert fractions == [0.4, 1.0]


def test_a_gpu_type_larger_than_the_device_gets_the_whole_device(fractions: list[float]) -> None:
    with _bounded(context(1000)):
        assert fractions == [1.0]


@pytest.mark.parametrize(("is_virtual", "rehearses"), [(True, True), (False, False)])
def test_virtual_gpus_and_trainings_are_not_bounded(fractions: list[float], is_virtual: bool, rehearses: bool) -> None:
    with _bounded(context(40, is_virtual=is_virtual, rehearses=rehearses)):
        pass
    assert fractions == []
