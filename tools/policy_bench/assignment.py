"""At most one configuration for each job, within the GPUs of each type, at the least cost: an integer program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from tools.policy_bench.quiet import c_stdout_silenced

_MAX_NODES = 20_000


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration: ``num_gpus`` GPUs of a type, at a cost relative to giving nothing."""

    gpu_type: str
    num_gpus: int
    cost: float


def least_cost(
    jobs: Sequence[Sequence[Choice]], num_gpus: Mapping[str, int], *, relative_gap: float = 1e-3
) -> list[int | None]:
    """For each job the place of its choice, or None for nothing: a choice that costs more than nothing is none.

    num_gpus: GPUs there are of each type. relative_gap: the solver (HiGHS) stops once the cost is
    proved to be within this share of the least possible. It counts branch-and-bound nodes instead
    of time, so that the same problem always has the same answer.
    """
    columns = [
        (job, at, choice)
        for job, choices in enumerate(jobs)
        for at, choice in enumerate(choices)
        if choice.cost < 0 and choice.num_gpus <= num_gpus.get(choice.gpu_type, 0)
    ]
    chosen: list[int | None] = [None] * len(jobs)
    if columns:
        solution = _solve(columns, len(jobs), num_gpus, relative_gap)
        for (job, at, _), taken in zip(columns, solution, strict=True):
            if taken > 0.5:
                chosen[job] = at
    return chosen


def _solve(
    columns: Sequence[tuple[int, int, Choice]], num_jobs: int, num_gpus: Mapping[str, int], relative_gap: float
) -> Any:
    """The columns taken, as numbers near 0 or 1."""
    row_of_type = {gpu_type: num_jobs + at for at, gpu_type in enumerate(sorted(num_gpus))}
    at = np.arange(len(columns))
    rows = np.concatenate([[job for job, _, _ in columns], [row_of_type[each.gpu_type] for _, _, each in columns]])
    values = np.concatenate([np.ones(len(columns)), [each.num_gpus for _, _, each in columns]])
    matrix = csr_array((values, (rows, np.concatenate([at, at]))), shape=(num_jobs + len(row_of_type), len(columns)))
    limits = np.concatenate([np.ones(num_jobs), [num_gpus[gpu_type] for gpu_type in sorted(num_gpus)]])
    with c_stdout_silenced():
        found = milp(
            np.array([each.cost for _, _, each in columns]),
            integrality=np.ones(len(columns)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, -np.inf, limits),
            # Without presolve it is up to five times as fast here.
            options={"mip_rel_gap": relative_gap, "node_limit": _MAX_NODES, "presolve": False},
        )
    if found.x is None:
        raise RuntimeError(f"the solver found no assignment: {found.message}")
    return found.x
