"""Which drivers and cards a build of torch runs on: the one place that knows.

PyTorch publishes a wheel for each CUDA release; ``LOCKED`` is what the usual index gives for the torch of
requirements.lock. Architectures are those of PyTorch's support matrix (RELEASE.md; pytorch issues 178665 and 190385),
drivers those of NVIDIA's table of minor version compatibility in the CUDA toolkit's release notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class TorchBuild(StrEnum):
    """As PyTorch's own index names them: https://download.pytorch.org/whl/<name>."""

    CU126 = "cu126"
    CU130 = "cu130"
    CU132 = "cu132"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaNeeds:
    """min_driver: the first release branch. first, last: compute capabilities with kernels, the ends included.

    Code for one compute capability runs on later ones of the same major version.
    """

    cuda: str
    min_driver: int
    first: tuple[int, int]
    last: tuple[int, int]

    def has_kernels_for(self, compute_capability: str) -> bool:
        """Whether a card of ``compute_capability`` (``"8.0"``) finds code that it can run."""
        major, _, minor = compute_capability.partition(".")
        return self.first <= (int(major), int(minor or 0)) and int(major) <= self.last[0]


LOCKED_TORCH: Final = "2.13"
LOCKED: Final = TorchBuild.CU130
NEEDS: Final[Mapping[TorchBuild, CudaNeeds]] = {
    TorchBuild.CU126: CudaNeeds(cuda="12.6", min_driver=525, first=(5, 0), last=(9, 0)),
    TorchBuild.CU130: CudaNeeds(cuda="13.0", min_driver=580, first=(7, 5), last=(12, 0)),
    TorchBuild.CU132: CudaNeeds(cuda="13.2", min_driver=580, first=(7, 5), last=(12, 0)),
}
