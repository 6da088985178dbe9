"""What a model takes of prepared sequences: labels and positions that keep documents apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frenzy.core.values.job import DataSpec
from frenzy.trainer.data.batches import NOT_COUNTED, Batch, BatchReader, positions_of
from frenzy.trainer.data.packing import PackedData, SequenceReader
from frenzy.trainer.data.token_shards import Shard

END = 9
TOKENS = [1, 2, END, 3, END, END, 4, 5, 6, 7, 8, END, 1, 2, 3, 4]


@pytest.fixture
def reader(tmp_path: Path) -> SequenceReader:
    shard = Shard(segment=0, number=0, num_tokens=len(TOKENS), num_texts=1, is_last=True, digest="")
    (tmp_path / shard.name).write_bytes(np.array(TOKENS, dtype="<u2").tobytes())
    packed = PackedData(
        place=str(tmp_path),
        shards=(shard,),
        num_bytes_per_token=2,
        sequence_length=8,
        num_train=2,
        num_validation=0,
        num_tokens=len(TOKENS),
        digest="",
    )
    return SequenceReader(packed)


def read(reader: SequenceReader, *, document_masks: bool) -> Batch:
    data = DataSpec(path="text", sequence_length=8, document_masks=document_masks)
    return BatchReader(reader, data, END).read(np.arange(2))


def test_positions_begin_anew_with_each_document_and_each_sequence(reader: SequenceReader) -> None:
    batch = read(reader, document_masks=True)
    assert batch.positions is not None
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3]]


def test_the_first_token_of_a_document_is_not_predicted_from_the_document_before(reader: SequenceReader) -> None:
    batch = read(reader, document_masks=True)
    none = NOT_COUNTED
    assert batch.labels.tolist() == [[none, 2, END, none, END, none, none, 5], [none, 7, 8, END, none, 2, 3, 4]]
    assert batch.num_counted == 4 + 6


def test_packed_text_without_masks_counts_every_token_and_has_no_positions(reader: SequenceReader) -> None:
    batch = read(reader, document_masks=False)
    assert dict(batch.arguments()).keys() == {"input_ids", "labels"}
    assert batch.labels is batch.tokens
    assert batch.num_counted == 2 * 7


def test_a_batch_in_which_nothing_counts_still_has_a_label(reader: SequenceReader) -> None:
    batch = read(reader, document_masks=True).counting(0)
    assert batch.num_counted == 0
    assert (dict(batch.arguments())["labels"] != NOT_COUNTED).sum() == 1


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
def test_a_position_counts_the_tokens_since_its_document_began(rows: list[list[bool]]) -> None:
    starts = np.array(rows)
    for row, positions in zip(rows, positions_of(starts).tolist(), strict=True):
        begun = 0
        for index, position in enumerate(positions):
            begun = index if row[index] else begun
            assert position == index - begun
