"""Builds of torch, the drivers that they need and the cards that they have kernels for."""

from __future__ import annotations

import pytest

from frenzy.adapters.k8s.torch_builds import LOCKED, LOCKED_TORCH, NEEDS, TorchBuild
from frenzy.core.values.gpu_catalogue import CATALOGUE
from frenzy.settings import CHECKOUT


def test_the_locked_build_is_that_of_the_locked_torch() -> None:
    """Another torch may be built for another CUDA: look it up, then change both."""
    for lock in ("requirements.lock", "docker/trainer/requirements.lock"):
        assert f"\ntorch=={LOCKED_TORCH}." in (CHECKOUT / lock).read_text(encoding="utf-8")


@pytest.mark.parametrize("build", TorchBuild)
def test_every_build_is_described(build: TorchBuild) -> None:
    assert NEEDS[build].first <= NEEDS[build].last


def test_the_locked_build_has_no_kernels_for_volta_and_pascal_alone() -> None:
    missing = {
        name
        for name, entry in CATALOGUE.items()
        if not NEEDS[LOCKED].has_kernels_for(entry.gpu.compute_capability or "")
    }
    assert missing == {name for name in CATALOGUE if name.startswith(("v100", "p100"))}


def test_every_card_of_the_catalogue_has_a_build() -> None:
    for entry in CATALOGUE.values():
        assert any(each.has_kernels_for(entry.gpu.compute_capability or "") for each in NEEDS.values())


def test_code_runs_on_later_cards_of_its_generation_and_not_of_the_next() -> None:
    assert NEEDS[TorchBuild.CU126].has_kernels_for("8.9")
    assert not NEEDS[TorchBuild.CU126].has_kernels_for("10.0")
    assert NEEDS[TorchBuild.CU130].has_kernels_for("10.3")
