"""Run every benchmark, or the ones named: ``python -m tests.bench [schedule parse overhead]``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(names: list[str]) -> int:
    """Run the benchmarks called ``names`` (all, if none); 1 when a goal was missed."""
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}; there are: {', '.join(known)}.", file=sys.stderr)
        return 2
    rows = []
    for name in names or known:
        print(f"== {name}", flush=True)
        rows += importlib.import_module(f"tests.bench.bench_{name}").main()
    missed = [row["name"] for row in rows if not row["ok"]]
    print(f"{len(rows)} figures, {len(missed)} missed their goal" + (f": {', '.join(missed)}" if missed else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
