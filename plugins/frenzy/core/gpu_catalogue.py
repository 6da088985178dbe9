"""GPU cards that a cluster file may name without describing them.

Memory is what the CUDA driver reports as the device's total, below the printed size because
firmware, page tables and ECC take their part; it differs by some tens of MiB between driver
releases, and the lower figure is kept. Peak rates are dense (no structured sparsity) and, where a
card halves it, with fp32 accumulation, since that is what training uses. Links are per direction:
NVLink where the form factor has it, else the PCIe slot. Prices are the cluster's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from frenzy.core.hardware import GpuType
from frenzy.core.units import GIB

_TERA: Final = 1e12
_GIGA: Final = 1e9
_PCIE3_X16: Final = 16.0
_PCIE4_X16: Final = 32.0
_PCIE5_X16: Final = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One card and the document its rates are from."""

    gpu: GpuType
    source: str


def _card(
    name: str,
    memory_gib: float,
    tflops: float,
    fp32_tflops: float,
    memory_gb_per_s: float,
    link_gb_per_s: float,
    compute_capability: str,
    source: str,
) -> CatalogueEntry:
    gpu = GpuType(
        name=name,
        memory_bytes=round(memory_gib * GIB),
        flops_per_s=tflops * _TERA,
        fp32_flops_per_s=fp32_tflops * _TERA,
        memory_bandwidth_bytes_per_s=memory_gb_per_s * _GIGA,
        link_bytes_per_s=link_gb_per_s * _GIGA,
        compute_capability=compute_capability,
    )
    return CatalogueEntry(gpu=gpu, source=source)


_ENTRIES: Final = (
    # name, memory GiB, 16-bit TFLOP/s, fp32 TFLOP/s, memory GB/s, link GB/s, compute capability, source
    _card("b200", 178.3, 2250, 75, 7700, 900, "10.0", "NVIDIA DGX B200 datasheet, per GPU"),
    _card("h200", 139.8, 989.4, 66.9, 4800, 450, "9.0", "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
    _card("h100", 79.1, 989.4, 66.9, 3350, 450, "9.0", "NVIDIA H100 Tensor Core GPU datasheet, SXM5"),
    _card("h100-pcie", 79.1, 756, 51.2, 2000, _PCIE5_X16, "9.0", "NVIDIA H100 PCIe product brief"),
    _card("a100-80", 79.1, 312, 19.5, 2039, 300, "8.0", "NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM"),
    _card("a100-40", 39.4, 312, 19.5, 1555, 300, "8.0", "NVIDIA A100 Tensor Core GPU datasheet, 40GB SXM"),
    _card("a100-80-pcie", 79.1, 312, 19.5, 1935, _PCIE4_X16, "8.0", "NVIDIA A100 datasheet, 80GB PCIe"),
    _card("a100-40-pcie", 39.4, 312, 19.5, 1555, _PCIE4_X16, "8.0", "NVIDIA A100 PCIe product brief, 40GB"),
    _card("a30", 23.5, 165, 10.3, 933, _PCIE4_X16, "8.0", "NVIDIA A30 Tensor Core GPU datasheet"),
    _card("a40", 44.3, 149.7, 37.4, 696, _PCIE4_X16, "8.6", "NVIDIA A40 datasheet"),
    _card("a10", 22.0, 125, 31.2, 600, _PCIE4_X16, "8.6", "NVIDIA A10 Tensor Core GPU datasheet"),
    _card("a10g", 22.0, 70, 35, 600, _PCIE4_X16, "8.6", "NVIDIA A10G datasheet"),
    _card("l40s", 44.4, 362, 91.6, 864, _PCIE4_X16, "8.9", "NVIDIA L40S datasheet"),
    _card("l40", 44.4, 181, 90.5, 864, _PCIE4_X16, "8.9", "NVIDIA L40 datasheet"),
    _card("l4", 22.0, 121, 30.3, 300, _PCIE4_X16, "8.9", "NVIDIA L4 Tensor Core GPU datasheet"),
    _card("t4", 14.56, 65, 8.1, 320, _PCIE3_X16, "7.5", "NVIDIA T4 Tensor Core GPU datasheet"),
    _card("v100-32", 31.7, 125, 15.7, 900, 150, "7.0", "NVIDIA V100 Tensor Core GPU datasheet, 32GB SXM2"),
    _card("v100-16", 15.7, 125, 15.7, 900, 150, "7.0", "NVIDIA V100 Tensor Core GPU datasheet, 16GB SXM2"),
    _card("v100-32-pcie", 31.7, 112, 14, 900, _PCIE3_X16, "7.0", "NVIDIA V100 datasheet, 32GB PCIe"),
    _card("v100-16-pcie", 15.7, 112, 14, 900, _PCIE3_X16, "7.0", "NVIDIA V100 datasheet, 16GB PCIe"),
    _card("p100-16", 15.9, 18.7, 9.3, 732, _PCIE3_X16, "6.0", "NVIDIA Tesla P100 datasheet, 16GB PCIe"),
    _card("rtx-5090", 31.3, 209.5, 104.8, 1792, _PCIE5_X16, "12.0", "NVIDIA RTX Blackwell GPU architecture paper"),
    _card("rtx-4090", 23.5, 165.2, 82.6, 1008, _PCIE4_X16, "8.9", "NVIDIA Ada GPU architecture paper, appendix A"),
    _card("rtx-6000-ada", 47.4, 364.2, 91.1, 960, _PCIE4_X16, "8.9", "NVIDIA RTX 6000 Ada Generation datasheet"),
    _card("rtx-a6000", 47.4, 154.8, 38.7, 768, _PCIE4_X16, "8.6", "NVIDIA RTX A6000 datasheet"),
    _card("rtx-3090", 23.6, 71, 35.6, 936, _PCIE4_X16, "8.6", "NVIDIA Ampere GA102 GPU architecture paper"),
    _card("rtx-3080", 9.7, 59.5, 29.8, 760, _PCIE4_X16, "8.6", "NVIDIA Ampere GA102 GPU architecture paper, 10GB"),
    _card("rtx-6000", 23.6, 130.5, 16.3, 672, _PCIE3_X16, "7.5", "NVIDIA Quadro RTX 6000 datasheet (Turing)"),
    _card("rtx-2080-ti", 10.7, 53.8, 13.4, 616, _PCIE3_X16, "7.5", "NVIDIA Turing GPU architecture paper"),
)

CATALOGUE: Final[Mapping[str, CatalogueEntry]] = MappingProxyType({entry.gpu.name: entry for entry in _ENTRIES})
