"""The loss on the held-out text while the training goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import distributed

from frenzy.trainer import heartbeats
from frenzy.trainer.data.batches import BatchReader
from frenzy.trainer.loop.batch_share import model_inputs
from frenzy.trainer.loop.rank_run import Run


def validation_loss(run: Run, reader: BatchReader) -> float:
    """Mean loss over the tokens that count in the held-out sequences, the same on all ranks. Collective.

    reader: of the held-out data.

    Batches have the training's shape, without gradients: no more memory than a step. Rows beyond the last sequence
    are there for their shape alone, and every rank takes every turn, as ZeRO-3 needs.
    """
    plan, data = run.spec.plan, run.prepared.held_out
    count = min(data.num_validation, run.spec.job.validation.max_sequences)
    device = run.device.torch_device
    total = torch.zeros(2, dtype=torch.float64, device=device)  # of losses, and of tokens
    run.engine.eval()
    with torch.no_grad():
        for first in _firsts(count, plan.dp, plan.micro_batch_size, run.dp_rank):
            held = max(0, min(plan.micro_batch_size, count - first))
            rows = np.minimum(np.arange(first, first + plan.micro_batch_size), count - 1)
            batch = reader.read(data.num_train + rows).counting(held)
            loss = run.engine(**model_inputs(batch, device), use_cache=False).loss
            if batch.num_counted:
                total += torch.stack((loss.double(), torch.ones_like(total[1]))) * batch.num_counted
    run.engine.train()
    distributed.all_reduce(total)
    return float(total[0] / total[1])


def _firsts(count: int, dp: int, micro_batch_size: int, dp_rank: int) -> Iterator[int]:
    """The first sequence of this rank in each turn; all ranks have as many turns."""
    for turn in range(math.ceil(count / (dp * micro_batch_size))):
        heartbeats.beat("validating: turns begun", turn)
        yield (turn * dp + dp_rank) * micro_batch_size
