"""Which physical GPUs workers get on one machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from frenzy.adapters.local.local_gpus import Device, GpuClaim, claim_gpus
from frenzy.core.values.units import GIB


def device(index: int, *, gib: int = 80, busy: bool = False) -> Device:
    return Device(index=index, uuid=f"GPU-{index}a", memory_bytes=gib * GIB, is_busy=busy)


Claim = Callable[..., GpuClaim]


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    """claim(number, *devices): of 80 GiB each, on a machine with these devices."""

    def claim(num_gpus: int, *devices: Device, visible: str | None = None) -> GpuClaim:
        return claim_gpus(
            num_gpus,
            80 * GIB,
            locks=tmp_path / "gpus",
            visible=visible,
            cancelled=lambda: False,
            devices=lambda: devices,
            patience_s=0,
        )

    return claim


def test_claims_never_share_a_device(claim: Claim) -> None:
    machine = [device(index) for index in range(4)]
    first, second = claim(3, *machine), claim(1, *machine)
    assert (first.indices, second.indices) == ((0, 1, 2), (3,))
    with pytest.raises(OSError, match="not all free"):
        claim(1, *machine)


def test_a_device_is_free_again_when_the_last_holder_is_gone(claim: Claim) -> None:
    first = claim(1, device(0))
    inherited = os.dup(first.lock_fds[0])
    os.close(first.lock_fds[0])
    with pytest.raises(OSError, match="not all free"):
        claim(1, device(0))
    os.close(inherited)
    assert claim(1, device(0)).indices == (0,)


def test_a_claim_that_fails_holds_nothing(claim: Claim) -> None:
    with pytest.raises(OSError, match="2 GPUs"):
        claim(2, device(0))
    assert claim(1, device(0)).indices == (0,)


def test_idle_devices_of_the_right_size_come_first(claim: Claim) -> None:
    machine = (device(0, gib=24), device(1, busy=True), device(2), device(3))
    assert claim(3, *machine).indices == (1, 2, 3)


def test_an_idle_device_is_preferred(claim: Claim) -> None:
    assert claim(1, device(0, busy=True), device(1)).indices == (1,)


@pytest.mark.parametrize(("visible", "indices"), [("1", (1,)), ("GPU-2", (2,)), (None, (0,))])
def test_only_what_this_process_may_see_is_claimed(claim: Claim, visible: str | None, indices: tuple[int, ...]) -> None:
    assert claim(1, *(device(index) for index in range(3)), visible=visible).indices == indices


def test_nothing_visible_means_no_device(claim: Claim) -> None:
    with pytest.raises(OSError, match="1 GPU "):
        claim(1, device(0), visible="")
