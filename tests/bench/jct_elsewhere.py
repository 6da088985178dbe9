"""How far the figures of ``bench_jct`` carry: ``has`` over ``sia-ilp`` on workloads that had no part in its numbers.

``PYTHONPATH=plugins python -m tests.bench.jct_elsewhere``: some fifteen minutes on two cores. Nothing here may be used
to choose a number of ``has``. ``--docs`` writes ``docs/other-workloads.md`` as well; read the sentences below its table
again then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.bench.elsewhere_workloads import groups
from tests.bench.jct_page import DOCS, machine, table, with_interval
from tests.bench.jct_runs import HAS, HAS_WRONG, NUM_WORKERS, SIA, SIGMA

from frenzy.core.values.scheduling_facts import QueuedJob
from frenzy.sim.disturbances import Disturbances
from frenzy.sim.engine import simulate
from frenzy.sim.reports.intervals import interval_of_mean
from frenzy.sim.scenario_jobs import Scenario
from frenzy.sim.summaries import Summary, summarise
from frenzy.sim.workloads import WorkloadSpec, make_scenario
from tools.policy_bench.rivals import scheduler_named

HAS_UNKNOWN: Final = "has, work unknown"
_SERIES: Final = ((SIA, "sia-ilp", 0.0), (HAS, "has", 0.0), (HAS_WRONG, "has", SIGMA), (HAS_UNKNOWN, "has", None))
_BELIEVED_S: Final = 1800.0
# Written by hand, from what ``--only Sia`` prints.
_OWN_SECTION: Final = "\n## Sia's own jobs\n"
_FIELDS: Final = ("jct_mean_s", "jct_p99_s", "makespan_s")

PAGE: Final = """\
# Other workloads

How far the figures of [How we compare](how-we-compare.md) carry: the same two policies on workloads that had no part in
choosing the numbers of `has`. This page is written by

```sh
PYTHONPATH=plugins .venv/bin/python -m tests.bench.jct_elsewhere --docs    # some fifteen minutes on two cores
```

Simulated on {date}, on a machine with {machine}.

{table}

Ratios of `has` to `sia-ilp`, means over the scenarios with 95 % bootstrap intervals; below 1, `has` is better.
Scenarios that share a trace, a cluster or profiles are not independent, so the intervals are too narrow. Wrong
estimates: the work of each job is believed to be the true one times exp(N(0, 1.4)).

The workloads ([`elsewhere_workloads`](../tests/bench/elsewhere_workloads.py)): the traces and clusters of the
comparison with jobs of three other seeds, then at half and at twice the load; samples of the large trace on clusters of
two and of four GPU types; and throughput profiles that are made up, of which some scale badly and some do not fit the
small cards.

- **With known work** other jobs on the same traces give the figures of the comparison, its missed makespan aside. The
  lead holds at other loads, and shrinks where most jobs find GPUs at once: there is little to decide there.
- **With wrong estimates** it is smaller, at other loads next to nothing, and the longest completion times can be
  worse: a job that is believed to be many times longer than it is waits for others in their full length. Who cannot
  know the work of most jobs gains little by `has` over `sia-ilp` but its cost.
- **The longest jobs pay.** `has` serves short jobs first. Where a few jobs hold most of the work, and above all where
  they can use one scarce GPU type only, `sia-ilp` gives them a few GPUs throughout; under `has` they wait for the
  short ones, also for such as could run elsewhere, though slower. That is less waiting in sum, and a later end for the
  longest. Where that matters, a higher `priority` or a [deadline](jobs.md) puts such a job first.
"""


def main(arguments: Sequence[str] = ()) -> None:
    """Run and print; with ``--docs`` write the page."""
    parser = argparse.ArgumentParser(prog="jct-elsewhere", description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write the page")
    parser.add_argument("--only", default="", help="only the workloads whose name holds this; never writes the page")
    options = parser.parse_args(list(arguments))
    with TemporaryDirectory() as folder:
        text = ratios_of({name: each for name, each in groups(Path(folder)).items() if options.only in name})
    print(text)
    if options.docs and not options.only:
        path = DOCS / "other-workloads.md"
        page = PAGE.format(date=f"{datetime.now(UTC):%Y-%m-%d}", machine=machine(), table=text)
        _, section, kept = path.read_text(encoding="utf-8").partition(_OWN_SECTION)
        path.write_text(page + section + kept, encoding="utf-8")


def ratios_of(workloads: dict[str, list[WorkloadSpec]]) -> str:
    """A row for each group of workloads, known work and wrong estimates."""
    todo = [spec for specs in workloads.values() for spec in specs]
    with get_context("spawn").Pool(NUM_WORKERS) as pool:
        by_series = {label: pool.map(partial(run, name, sigma), todo, 1) for label, name, sigma in _SERIES}
    rows, begin = [], 0
    for title, specs in workloads.items():
        part = slice(begin, begin + len(specs))
        begin = part.stop
        for label in (HAS, HAS_WRONG, HAS_UNKNOWN):
            cells = [_ratio(field, by_series[label][part], by_series[SIA][part]) for field in _FIELDS]
            rows.append((title, f"`{label}`", str(len(specs)), *cells))
    return table(("workloads", "policy", "scenarios", "average JCT", "p99 JCT", "makespan"), rows)


def run(name: str, sigma: float | None, spec: WorkloadSpec) -> Summary:
    """What comes of ``spec`` under the policy ``name``; the same each time but for CPU times.

    sigma: of the estimates' errors; None where the work of no job is known.
    """
    scenario = make_scenario(replace(spec, disturbances=Disturbances(estimate_sigma=sigma or 0.0)))
    return summarise(simulate(with_unknown_work(scenario) if sigma is None else scenario, scheduler_named(name)))


def with_unknown_work(scenario: Scenario) -> Scenario:
    """``scenario`` where every job is believed to take as long alone on the GPU that suits it best."""
    return replace(scenario, jobs=tuple(replace(each, job=_unknown(each.job)) for each in scenario.jobs))


def _unknown(job: QueuedJob) -> QueuedJob:
    fewest = min(plan.num_gpus for plan in job.plans)
    alone_s = min(plan.predicted_run_s for plan in job.plans if plan.num_gpus == fewest)
    return replace(job, work_left=_BELIEVED_S / alone_s)


def _ratio(field: str, policy: Sequence[Summary], rival: Sequence[Summary]) -> str:
    pairs = zip(policy, rival, strict=True)
    return with_interval(interval_of_mean([getattr(one, field) / getattr(other, field) for one, other in pairs]))


if __name__ == "__main__":
    main(sys.argv[1:])
