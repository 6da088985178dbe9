"""How many tokens' logits the fused loss holds at a time; the trainer cuts, the memory model counts."""

from __future__ import annotations

from typing import Final

# 256 MiB of fp32 logits: large enough that a matrix product fills a GPU, small beside any model.
_CHUNK_ELEMENTS: Final = 2**26
_TOKEN_MULTIPLE: Final = 128


def loss_chunk_tokens(num_tokens: int, vocab_size: int) -> int:
    """Tokens of one chunk: a multiple of 128 (at least 128) with at most 2^26 logits, or all tokens if fewer."""
    most = max(1, _CHUNK_ELEMENTS // vocab_size // _TOKEN_MULTIPLE) * _TOKEN_MULTIPLE
    return min(num_tokens, most)
