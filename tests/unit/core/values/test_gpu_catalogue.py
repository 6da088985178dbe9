"""The catalogue of cards: complete rows with plausible figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frenzy.core.values.gpu_catalogue import CATALOGUE, CatalogueEntry, types_named
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.job import Precision
from frenzy.core.values.units import GIB


def test_it_has_the_cards_a_mixed_cluster_is_made_of() -> None:
    wanted = {"a100-40", "a100-80", "h100", "h200", "v100-16", "v100-32", "t4", "l4", "l40s", "a10", "a40"}
    wanted |= {"rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-6000-ada", "rtx-6000"}
    assert wanted <= set(CATALOGUE)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_each_row_is_complete_and_plausible(entry: CatalogueEntry) -> None:
    gpu = entry.gpu
    assert gpu.kind is DeviceKind.CUDA
    assert entry.source
    assert gpu.compute_capability is not None
    assert 9 * GIB < gpu.memory_bytes < 300 * GIB
    assert gpu.fp32_flops_per_s is not None
    assert gpu.power_w is not None and 50 <= gpu.power_w <= 1500
    assert entry.link
    assert 1 <= gpu.flops_per_s / gpu.fp32_flops_per_s <= 32
    assert 2e11 <= gpu.memory_bandwidth_bytes_per_s <= 1e13
    assert 1.6e10 <= gpu.link_bytes_per_s <= gpu.memory_bandwidth_bytes_per_s


def test_there_are_enough_cards_to_describe_most_clusters() -> None:
    assert len(CATALOGUE) >= 36


def test_bf16_runs_at_the_fp32_rate_where_the_card_has_no_units_for_it() -> None:
    t4, a10 = CATALOGUE["t4"].gpu, CATALOGUE["a10"].gpu
    assert t4.peak_flops_per_s(Precision.BF16) == t4.peak_flops_per_s(Precision.FP32)
    assert t4.peak_flops_per_s(Precision.FP16) > t4.peak_flops_per_s(Precision.BF16)
    assert a10.peak_flops_per_s(Precision.AUTOCAST_BF16) == a10.peak_flops_per_s(Precision.FP16)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE.keys())
def test_tf32_lies_between_fp32_and_half_precision(entry: CatalogueEntry) -> None:
    gpu = entry.gpu
    if gpu.tf32_flops_per_s is None:
        assert float(gpu.compute_capability or 0) < 8.0
        return
    assert gpu.fp32_flops_per_s is not None
    assert gpu.fp32_flops_per_s * 0.99 <= gpu.tf32_flops_per_s <= gpu.flops_per_s * 0.52


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name.rsplit("-", 1)[-1].isdigit()])
def test_the_driver_reports_no_more_than_the_printed_size(name: str) -> None:
    printed = {"16", "32", "40", "80"} & {name.rsplit("-", 1)[-1]}
    for size_gib in map(int, printed):
        assert 0.9 * size_gib * GIB < CATALOGUE[name].gpu.memory_bytes < size_gib * GIB


@pytest.mark.parametrize(
    ("asked", "types", "meant"),
    [
        ("RTX4090", "rtx-4090 t4", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090 rtx-3090", "rtx-4090"),
        ("4090", "rtx-4090 rtx-3090", "rtx-4090"),
        ("h100", "h100-80 a100-80", "h100-80"),
        ("H100 80GB", "h100 h100-nvl", "h100"),
        ("h100", "h100 h100-80", "h100"),
        ("rtx4090", "rtx-4090 rtx4090", "rtx4090"),
        ("A100", "a100-40 a100-80 a10", "a100-40 a100-80"),
        ("A10", "a100-40 a100-80", ""),
        ("L40", "l40s", ""),
        ("A100-80", "a100-40", ""),
        ("mine", "mine-2 t4", "mine-2"),
        ("80", "h100-80 a100-80", ""),
        ("-", "t4", ""),
    ],
)
def test_a_name_means_the_types_that_people_mean_by_it(asked: str, types: str, meant: str) -> None:
    there = [replace(CATALOGUE["t4"].gpu, name=each) for each in types.split()]
    assert [each.name for each in types_named(asked, there)] == meant.split()
