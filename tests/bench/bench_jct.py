"""Completion times of ``has`` against every rival, on all traces, clusters and seeds.

``make bench-jct``: some seven minutes on two cores, nearly all of it Sia's integer programs. ``--quick`` takes
one seed only. ``--docs`` writes ``docs/how-we-compare.md`` and its picture as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tests.bench.jct_figures import json_rows
from tests.bench.jct_page import tables_as_text, write_page
from tests.bench.jct_runs import SEEDS, cases, run_all
from tests.bench.report import publish


def main(arguments: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Run, print, write ``build/bench/jct.json``; the rows of that file."""
    parser = argparse.ArgumentParser(prog="bench-jct", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed only")
    parser.add_argument("--docs", action="store_true", help="write the page and its picture")
    options = parser.parse_args(list(arguments))
    seeds = SEEDS[:1] if options.quick else SEEDS
    runs = run_all(cases(seeds))
    summaries = [each.summary for each in runs]
    print(tables_as_text(summaries))
    rows = publish("jct", json_rows(summaries))
    if options.docs:
        print(f"written: {write_page(runs, seeds)}")
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])
