"""Prove the product on this machine's GPU: python scripts/gpu_proof.py --minutes 9 (docs/gpu-figures.md)."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path[:0] = [str(CHECKOUT / "plugins"), str(CHECKOUT)]

if __name__ == "__main__":
    from tools.gpu_proof.__main__ import main

    sys.exit(main())
