"""What is tried, one module for each part; ``PARTS`` is the order of value."""

from __future__ import annotations

from typing import Final

from tools.gpu_proof.parts import failures, large_model, long_sequence, matrix, memory_grid, place, plans
from tools.gpu_proof.proof import Part

PARTS: Final[tuple[Part, ...]] = (
    place.PART,
    plans.PART,
    matrix.PART,
    long_sequence.PART,
    large_model.PART,
    memory_grid.PART,
    failures.PART,
)
