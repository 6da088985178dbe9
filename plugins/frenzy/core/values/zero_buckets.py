"""Sizes of DeepSpeed's ZeRO buffers, all derived from one number of a plan.

DeepSpeed's defaults (5e8 elements) suit models of billions of parameters: the reduction buffer
alone is 2 GB in fp32, more than a small GPU's whole budget. A plan carries ``bucket_elements``;
the memory model and the DeepSpeed config both take the sizes from here, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEEPSPEED_BUCKET_ELEMENTS: Final = 500_000_000
_MAX_PERSISTENT_ELEMENTS: Final = 100_000
_SMALL_SHARE: Final = 16
_SMALL_LEAST: Final = 2**15
_SMALL_MOST: Final = 2**21


@dataclass(frozen=True, slots=True)
class ZeroBuckets:
    """Elements of each ZeRO buffer; at 5e8 they are DeepSpeed's own defaults.

    reduce: gradients gathered before one reduction (a larger parameter goes alone, uncopied).
    prefetch, live, reuse, persistent: stage 3 only; parameters fetched ahead, held gathered,
    kept when needed again within that distance, and never partitioned if at most that long.
    sub_group: stage 3 only; of the partition, updated by the optimizer at a time, and at most one parameter more.
    """

    reduce: int
    prefetch: int
    live: int
    reuse: int
    persistent: int
    sub_group: int = 1_000_000_000


def zero_buckets(bucket_elements: int) -> ZeroBuckets:
    """The buffer sizes that go with ``bucket_elements`` (made even: DeepSpeed aligns on pairs)."""
    reduce = max(2, bucket_elements - bucket_elements % 2)
    return ZeroBuckets(
        reduce=reduce,
        prefetch=reduce // 10,
        live=2 * reduce,
        reuse=2 * reduce,
        persistent=min(_MAX_PERSISTENT_ELEMENTS, reduce // 100),
    )


def bucket_elements_for(num_trainable: int, *, virtual: bool) -> int:
    """The bucket a plan uses for a model with ``num_trainable`` trainable parameters.

    Never larger than the model on a real GPU; on a virtual GPU a sixteenth of it, because there
    the buffer competes with a model of a few million parameters for a few hundred megabytes.
    """
    if virtual:
        return max(_SMALL_LEAST, min(_SMALL_MOST, num_trainable // _SMALL_SHARE))
    return max(2, min(DEEPSPEED_BUCKET_ELEMENTS, num_trainable))
