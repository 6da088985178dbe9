"""Micro-batches of prepared sequences: what a model takes of them, and how many tokens its loss is the mean of.

A document begins after the end-of-text token of the one before, a conversation where it is marked, each with its
sequence at the latest. Of conversations the marked tokens count, of texts all. Where documents are kept apart,
the positions of each begin at 0. transformers makes the attention mask of that, unless it is given a mask besides: so
none is ever given. The first token of a document is not predicted from the document before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from frenzy.core.values.job import DataSpec
from frenzy.trainer.data.packing import SequenceReader

# The label that losses of torch and transformers leave out.
NOT_COUNTED: Final = -100
_Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """tokens, labels, positions: [sequences, length]. A label that is NOT_COUNTED is not part of the loss.

    positions: within each document; None where documents are not kept apart.
    """

    tokens: _Integers
    labels: _Integers
    positions: _Integers | None = None

    @property
    def num_counted(self) -> int:
        """Tokens that the loss is the mean of; the first of a sequence is predicted from nothing."""
        return int((self.labels[:, 1:] != NOT_COUNTED).sum())

    def counting(self, num_rows: int) -> Batch:
        """With the labels of the first ``num_rows`` sequences alone."""
        labels = self.labels.copy()
        labels[num_rows:] = NOT_COUNTED
        return replace(self, labels=labels)

    def rows(self, first: int, end: int) -> Batch:
        """The sequences from ``first`` to before ``end``. Labels that are the tokens stay the same array."""
        tokens = self.tokens[first:end]
        labels = tokens if self.labels is self.tokens else self.labels[first:end]
        return Batch(
            tokens=tokens, labels=labels, positions=None if self.positions is None else self.positions[first:end]
        )

    def arguments(self) -> Iterator[tuple[str, _Integers]]:
        """The model's arguments by name. One label at least: the mean over none is no number, whatever its weight."""
        yield "input_ids", self.tokens
        if self.num_counted:
            yield "labels", self.labels
        else:
            labels = self.labels.copy()
            labels[0, 1] = self.tokens[0, 1]
            yield "labels", labels
        if self.positions is not None:
            yield "position_ids", self.positions


class BatchReader:
    """Reads sequences by index as ``data`` asks for. end_id: the tokenizer's end-of-text token."""

    def __init__(self, reader: SequenceReader, data: DataSpec, end_id: int) -> None:
        self._reader, self._data, self._end_id = reader, data, end_id

    @property
    def counts_vary(self) -> bool:
        """Whether the loss of one sequence may be the mean of more tokens than another's."""
        return self._data.document_masks or self._data.messages is not None

    def read(self, indices: _Integers) -> Batch:
        """The sequences ``indices``."""
        tokens, counted, starts = self._reader.read_marked(indices)
        labels = tokens if counted is None else np.where(counted, tokens, NOT_COUNTED)
        if not self._data.document_masks:
            return Batch(tokens=tokens, labels=labels)
        positions = positions_of(_starts(tokens, self._end_id) if starts is None else starts)
        return Batch(tokens=tokens, labels=np.where(positions == 0, NOT_COUNTED, labels), positions=positions)

    def close(self) -> None:
        self._reader.close()


def positions_of(starts: NDArray[np.bool_]) -> _Integers:
    """Position of each token in its document; ``starts``: [sequences, length], where one begins."""
    index = np.arange(starts.shape[1], dtype=np.int64)
    begun: _Integers = np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    return index - begun


def _starts(tokens: _Integers, end_id: int) -> NDArray[np.bool_]:
    starts: NDArray[Any] = np.zeros(tokens.shape, dtype=np.bool_)
    starts[:, 1:] = tokens[:, :-1] == end_id
    return starts
