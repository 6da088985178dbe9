"""Pieces of text to token ids, on all cores, in order, in bounded memory.

The Rust tokenizer leaves Python's lock while it works on a batch, so threads suffice. Which texts are encoded
together changes no token: each is encoded by itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from frenzy.trainer.data.source_parts import digest_of
from frenzy.trainer.data.tokenizer import is_byte_tokenizer

# A longer piece is cut there: what a token may span, so part of what is trained on.
_MAX_CHARACTERS_AT_ONCE: Final = 1_000_000
BATCH_CHARACTERS: Final = 200_000
_BATCH_TEXTS: Final = 4_096
# A character under way takes some 40 bytes: the library's account of its token, then Python's integer.
_CHARACTERS_UNDER_WAY: Final = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch:
    """Texts of one segment, each with whether it ends its document. is_last: the segment ends with them."""

    segment: int
    texts: tuple[tuple[str, bool], ...] = ()
    is_last: bool = False

    @property
    def num_characters(self) -> int:
        return sum(len(text) for text, _ in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The token ids of a TextBatch, ends of documents among them."""

    segment: int
    ids: NDArray[Any]
    num_texts: int
    num_characters: int
    is_last: bool


class Encoder:
    """A tokenizer as the preparation uses it. dtype: of the ids, little-endian, 2 or 4 bytes each."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._is_bytes = is_byte_tokenizer(tokenizer)
        self._rust = getattr(tokenizer, "backend_tokenizer", None) if getattr(tokenizer, "is_fast", False) else None
        if self._rust is not None:
            self._rust.no_padding()
            self._rust.no_truncation()
        largest_id = max(len(tokenizer) - 1, tokenizer.eos_token_id)
        self.dtype: np.dtype[Any] = np.dtype("<u2" if largest_id < 2**16 else "<u4")

    @property
    def digest(self) -> str:
        """Of all that decides which tokens a text becomes."""
        own = self._rust.to_str() if self._rust is not None else f"{type(self._tokenizer)} {self._vocabulary()}"
        return digest_of(f"{own} {self._tokenizer.eos_token_id} {self.dtype}")

    def encode(self, batch: TextBatch) -> TokenBatch:
        """The tokens of the batch."""
        runs = self._tokens(batch)
        return TokenBatch(
            segment=batch.segment,
            ids=np.concatenate(runs) if runs else np.empty(0, dtype=self.dtype),
            num_texts=len(batch.texts),
            num_characters=batch.num_characters,
            is_last=batch.is_last,
        )

    def _tokens(self, batch: TextBatch) -> list[NDArray[Any]]:
        texts = [text for text, _ in batch.texts]
        runs: list[NDArray[Any]] = []
        end = np.array([self._tokenizer.eos_token_id], dtype=self.dtype)
        for ids, (_, ends) in zip(self._runs(texts), batch.texts, strict=True):
            runs += [ids, end] if ends else [ids]
        return runs

    def _runs(self, texts: list[str]) -> Iterator[NDArray[Any]]:
        if self._is_bytes:
            return (np.frombuffer(each.encode(), dtype=np.uint8).astype(self.dtype) for each in texts)
        if self._rust is not None:
            found = self._rust.encode_batch_fast(texts, add_special_tokens=False)
            return (np.array(each.ids, dtype=self.dtype) for each in found)
        options: dict[str, Any] = {"add_special_tokens": False, "verbose": False}
        return (np.array(self._tokenizer(each, **options)["input_ids"], dtype=self.dtype) for each in texts)

    def _vocabulary(self) -> str:
        return repr(sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1]))


def batches(
    segment: int,
    pieces: Iterable[tuple[str, bool, int]],
    *,
    skip_texts: int = 0,
    cuts: bool = True,
    num_characters_each: int = BATCH_CHARACTERS,
    on_skip: Callable[[int], None] = lambda _: None,
) -> Iterator[TextBatch]:
    """The segment's texts in batches, the first ``skip_texts`` left out; always the same ones beyond them.

    on_skip: told the characters of each text that is left out. cuts: whether long texts are cut.
    """
    texts: list[tuple[str, bool]] = []
    num_characters = 0
    for text, ends, _ in pieces:
        for each in _cut(text, ends=ends) if cuts else [(text, ends)] if text else []:
            if skip_texts:
                skip_texts -= 1
                on_skip(len(each[0]))
                continue
            texts.append(each)
            num_characters += len(each[0])
            if num_characters >= num_characters_each or len(texts) >= _BATCH_TEXTS:
                yield TextBatch(segment=segment, texts=tuple(texts))
                texts, num_characters = [], 0
    yield TextBatch(segment=segment, texts=tuple(texts), is_last=True)


def encode_all(found: Iterable[TextBatch], encoder: Encoder, *, num_threads: int | None = None) -> Iterator[TokenBatch]:
    """Encoded batches in the order of ``found``."""
    num_threads = num_threads or len(os.sched_getaffinity(0))
    waiting: deque[tuple[int, Future[TokenBatch]]] = deque()
    under_way = 0
    with ThreadPoolExecutor(num_threads, thread_name_prefix="tokenise") as pool:
        try:
            for batch in found:
                size = batch.num_characters
                while waiting and (under_way + size > _CHARACTERS_UNDER_WAY or len(waiting) > 2 * num_threads):
                    done, future = waiting.popleft()
                    under_way -= done
                    yield future.result()
                waiting.append((size, pool.submit(encoder.encode, batch)))
                under_way += size
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()


def _cut(text: str, *, ends: bool) -> Iterator[tuple[str, bool]]:
    """The pieces of ``text`` that are encoded apart; an empty text that ends a document is one."""
    starts = range(0, len(text), _MAX_CHARACTERS_AT_ONCE) if text else range(1 if ends else 0)
    for start in starts:
        stop = start + _MAX_CHARACTERS_AT_ONCE
        yield text[start:stop], ends and stop >= len(text)
