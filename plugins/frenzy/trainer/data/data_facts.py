"""What planning wants to know of the data, read with the trainer's own readers but without its libraries.

Nothing here imports torch or transformers. A small data set is read whole; of a large one the
first part is, and the counts are scaled by size where that is fair, else left unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from frenzy.core.runs.ledger import DataFacts
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob
from frenzy.trainer.data.conversations import words_of
from frenzy.trainer.data.documents import list_files, pieces
from frenzy.trainer.outcome import BadInputError

_MOST_BYTES: Final = 256 * 1024**2
# Characters that are no text count, too, and each row as many more: it takes time however short it is.
_MOST_COST: Final = 2 * _MOST_BYTES
_COST_OF_A_PIECE: Final = 100
# Bytes of English text per token of a byte-level BPE: 2.5 at 1,024 tokens, 4.4 at GPT-2's 50,257;
# in between it goes with the logarithm of the vocabulary.
_BYTES_PER_TOKEN_AT_1024: Final = 2.5
_BYTES_PER_TOKEN_PER_BIT: Final = 0.34
_USUAL_VOCABULARY: Final = 32_000
# What transformers reads a tokenizer from; some families have their vocabulary alone.
_TOKENIZER_FILES: Final = ("tokenizer", "vocab", "merges", "spiece", "sentencepiece", "tekken")
_NOTHING: Final = DataFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    num_bytes: int = 0
    num_rows: int = 0
    longest_bytes: int = 0
    share: float | None = 1.0


def data_facts(job: TrainingJob, *, known: DataFacts = _NOTHING) -> DataFacts:
    """Rows, tokens and the longest document of ``job.data``; what is ``known`` is not counted again.

    Raises BadInputError for a missing file, an unknown ending, a missing or non-text column, and for a folder of a
    model without the tokenizer that the job would take from it.
    """
    check_held_out(job)
    check_own_tokenizer(job)
    vocab_size = known.vocab_size or job.model.tokenizer_size
    if known.num_tokens is not None:
        list_files(job.data)
        return replace(known, vocab_size=vocab_size)
    count = _count(job.data)
    per_token = _bytes_per_token(job.model, vocab_size)
    return DataFacts(
        num_tokens=_scaled((count.num_bytes / per_token) + count.num_rows, count.share),
        num_rows=known.num_rows or _scaled(count.num_rows, count.share),
        longest_sequence_tokens=known.longest_sequence_tokens or math.ceil(count.longest_bytes / per_token) + 1,
        vocab_size=vocab_size,
    )


def check_held_out(job: TrainingJob) -> None:
    """Read the first piece of held-out data with a place of their own. Raises BadInputError as ``data_facts``."""
    if job.held_out is None:
        return
    try:
        next(pieces(job.held_out.data), None)
    except BadInputError as error:
        raise error.of_held_out() from error


def check_own_tokenizer(job: TrainingJob) -> None:
    """Raise BadInputError for a folder of a model without the tokenizer that the job would take from it.

    A folder that is not here may be where the workers are.
    """
    if job.model.path is None or job.model.tokenizer_used != "model" or job.workload is not None:
        return
    folder = Path(job.model.path)
    if folder.is_dir() and not any(each.name.startswith(_TOKENIZER_FILES) for each in folder.iterdir()):
        allowed = "there is no tokenizer in it; put the one there that the model was trained with"
        named = "or name one in model.tokenizer: a folder, byte or train"
        raise BadInputError("model.path", job.model.path, f"{allowed}, {named}")


def _count(data: DataSpec) -> _Count:
    num_bytes = num_rows = longest = current = 0
    whole = True
    cost = 0
    for text, ends, num_characters in pieces(data):
        size = len(words_of(data, text).encode())
        num_bytes, current, cost = num_bytes + size, current + size, cost + num_characters + _COST_OF_A_PIECE
        if ends:
            num_rows, longest, current = num_rows + 1, max(longest, current), 0
        if num_bytes >= _MOST_BYTES or cost >= _MOST_COST:
            whole = False
            break
    longest = max(longest, current)
    if num_bytes == 0:
        raise BadInputError("data.path", data.path, "there is no text in it")
    share = 1.0 if whole else _share_read(data, num_bytes)
    return _Count(num_bytes=num_bytes, num_rows=max(num_rows, 1), longest_bytes=longest, share=share)


def _share_read(data: DataSpec, num_bytes: int) -> float | None:
    """Which share of plain text files was read; None for files whose size says little of their text."""
    import fsspec

    places = list_files(data)
    if data.format not in ("auto", "text") or not all(each.endswith((".txt", ".text", ".md")) for each in places):
        return None
    fs, _ = fsspec.core.url_to_fs(data.path)
    total = sum(int(fs.size(each)) for each in places)
    return num_bytes / total if total else None


def _scaled(value: float, share: float | None) -> int | None:
    return None if share is None else math.ceil(value / min(share, 1.0))


def _bytes_per_token(model: ModelSpec, vocab_size: int | None) -> float:
    if model.tokenizer_used == "byte":
        return 1.0
    bits = math.log2(vocab_size or _USUAL_VOCABULARY) - 10
    return max(1.0, _BYTES_PER_TOKEN_AT_1024 + _BYTES_PER_TOKEN_PER_BIT * bits)
