"""The loss on the held-out text while the training goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import distributed

from frenzy.trainer import heartbeats
from frenzy.trainer.data.packing import SequenceReader
from frenzy.trainer.loop.rank_run import Run

_NOT_SCORED = -100  # the label that losses of torch and transformers leave out


def validation_loss(run: Run, reader: SequenceReader) -> float:
    """Mean loss per token over the held-out sequences, the same on all ranks. Collective.

    Batches have the training's shape, without gradients: no more memory than a step. Rows beyond the last sequence
    are there for their shape alone, and every rank takes every turn, as ZeRO-3 needs.
    """
    plan, data = run.spec.plan, run.prepared.data
    count = min(data.num_validation, run.spec.job.validation.max_sequences)
    device = run.device.torch_device
    total = torch.zeros((), dtype=torch.float64, device=device)
    run.engine.eval()
    with torch.no_grad():
        for first in _firsts(count, plan.dp, plan.micro_batch_size, run.dp_rank):
            held = max(0, min(plan.micro_batch_size, count - first))
            rows = np.minimum(np.arange(first, first + plan.micro_batch_size), count - 1)
            tokens = torch.from_numpy(reader.read(data.num_train + rows)).to(device)
            labels = tokens.clone()
            labels[max(1, held) :] = _NOT_SCORED
            loss = run.engine(input_ids=tokens, labels=labels, use_cache=False).loss
            if held:
                total += loss.double() * held
    run.engine.train()
    distributed.all_reduce(total)
    return float(total) / (count * plan.tp)


def _firsts(count: int, dp: int, micro_batch_size: int, dp_rank: int) -> Iterator[int]:
    """The first sequence of this rank in each turn; all ranks have as many turns."""
    for turn in range(math.ceil(count / (dp * micro_batch_size))):
        heartbeats.beat("validating: turns begun", turn)
        yield (turn * dp + dp_rank) * micro_batch_size
