"""A rank's share of a global batch: which sequences, in how many reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from frenzy.trainer.data.batches import NOT_COUNTED, Batch
from frenzy.trainer.loop import batch_share
from frenzy.trainer.loop.batch_share import weighted_batches


class Sequences:
    """Sequence i has the token i alone; of odd ones nothing counts, where counts vary."""

    def __init__(self, *, counts_vary: bool) -> None:
        self.counts_vary = counts_vary
        self.num_reads = 0

    def read(self, indices: NDArray[np.int64]) -> Batch:
        self.num_reads += 1
        tokens = np.repeat(indices[:, None], 3, axis=1)
        labels = np.where(tokens % 2 == 0, tokens, NOT_COUNTED) if self.counts_vary else tokens
        return Batch(tokens=tokens, labels=labels, positions=tokens if self.counts_vary else None)


def found(reader: Sequences, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Batch, float | None]]:
    """Of rank 1 of 2, in 3 micro-batches of 2 sequences."""
    plan = SimpleNamespace(micro_batch_size=2, dp=2, num_gpus=2, accumulation_steps=3)
    run: Any = SimpleNamespace(spec=SimpleNamespace(plan=plan), dp_rank=1)
    monkeypatch.setattr(batch_share, "_sum_of_ranks", lambda _, number: 2.0 * number)
    given: Any = reader
    return list(weighted_batches(run, given, np.arange(12)))


@pytest.mark.parametrize("counts_vary", [False, True])
def test_all_micro_batches_of_a_step_are_read_at_once(counts_vary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Sequences(counts_vary=counts_vary)
    batches = found(reader, monkeypatch)
    assert reader.num_reads == 1
    assert [(first, batch.tokens[:, 0].tolist()) for first, batch, _ in batches] == [
        (2, [2, 3]),
        (6, [6, 7]),
        (10, [10, 11]),
    ]


def test_labels_that_are_the_tokens_are_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(batch.labels is batch.tokens for _, batch, _ in found(Sequences(counts_vary=False), monkeypatch))


def test_labels_and_positions_of_a_micro_batch_are_those_of_its_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, batch, weight in found(Sequences(counts_vary=True), monkeypatch):
        assert batch.labels[:, 0].tolist() == [first, NOT_COUNTED]
        assert batch.positions is not None
        assert batch.positions.tolist() == batch.tokens.tolist()
        assert weight == 1.0
