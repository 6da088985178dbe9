"""``python -m tools.policy_bench``: ``frenzy simulate`` with the rivals among its policies."""

from __future__ import annotations

import sys

from frenzy.cli.main import run
from frenzy.sim.registry import offer
from tools.policy_bench.rivals import RIVALS

if __name__ == "__main__":
    offer(RIVALS)
    sys.exit(run(["simulate", *sys.argv[1:]]))
