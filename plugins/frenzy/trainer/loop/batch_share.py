"""A rank's share of a global batch, as the model takes it, and what each micro-batch weighs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from frenzy.trainer.data.batches import Batch, BatchReader
from frenzy.trainer.loop.rank_run import Run


def model_inputs(batch: Batch, device: torch.device) -> dict[str, Any]:
    """The arguments of ``batch`` on ``device``; what is one array is one tensor."""
    moved: dict[int, torch.Tensor] = {}
    found = {}
    for name, values in batch.arguments():
        if id(values) not in moved:
            moved[id(values)] = torch.from_numpy(values).to(device, non_blocking=True)
        found[name] = moved[id(values)]
    return found


def weighted_batches(
    run: Run, reader: BatchReader, order: NDArray[np.int64]
) -> Iterator[tuple[int, Batch, float | None]]:
    """The rank's micro-batches of the global batch ``order``: first position, batch, and weight. Collective.

    The mean of a micro-batch is over the tokens that count in it. Weighted by how many these are, in relation to the
    mean micro-batch, it adds up to the mean over the global batch, however that is cut. None: all have as many.
    """
    plan = run.spec.plan
    size = plan.micro_batch_size
    firsts = [(turn * plan.dp + run.dp_rank) * size for turn in range(plan.accumulation_steps)]
    # At once: an object store answers many requests in the time of one.
    share = reader.read(np.concatenate([order[first : first + size] for first in firsts]))
    batches = [share.rows(at, at + size) for at in range(0, len(firsts) * size, size)]
    if not reader.counts_vary:
        yield from ((first, batch, None) for first, batch in zip(firsts, batches, strict=True))
        return
    mean = _sum_of_ranks(run, sum(each.num_counted for each in batches)) / (plan.num_gpus * plan.accumulation_steps)
    for first, batch in zip(firsts, batches, strict=True):
        yield first, batch, batch.num_counted / max(mean, 1e-9)


def _sum_of_ranks(run: Run, number: int) -> float:
    total = torch.tensor(float(number), dtype=torch.float64, device=run.device.torch_device)
    distributed.all_reduce(total)
    return float(total)
