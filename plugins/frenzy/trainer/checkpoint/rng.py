"""Random number generators of a rank, as plain text: Python's, NumPy's, torch's and the GPU's."""

from __future__ import annotations

import base64
import json
import random
from typing import Any, Final

import numpy as np
import torch

_SPREAD: Final = 1_000_003


def capture_rng() -> str:
    """The state of every generator of this process, as JSON."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    return json.dumps(
        {
            "python": [version, list(words), gauss],
            "numpy": [legacy[0], legacy[1].tolist(), legacy[2], legacy[3], legacy[4]],
            "torch": _to_text(torch.get_rng_state()),
            "cuda": _to_text(torch.cuda.get_rng_state()) if torch.cuda.is_available() else None,
        }
    )


def restore_rng(text: str) -> None:
    """Set every generator of this process to a captured state."""
    saved = json.loads(text)
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_text(saved["torch"]))
    if saved["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_text(saved["cuda"]))


def restore_rng_as_new_rank(text: str, rank: int) -> None:
    """Start the generators of a rank that did not exist when ``text`` was captured.

    Its streams follow from the captured state and the rank alone: the same resume gives the
    same numbers, and no two ranks share a stream.
    """
    restore_rng(text)
    seed = (int(torch.randint(2**31 - 1, (1,)).item()) + _SPREAD * rank) % (2**31 - 1)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _from_text(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
