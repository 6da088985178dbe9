"""The page ``docs/real-mix.md``: the real mix beside its simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Final

from tests.bench.jct_page import DOCS, machine
from tests.bench.mix_forecast import MixFigures, PolicyRuns
from tests.bench.mix_jobs import SIZES, MixJob
from tests.bench.mix_runs import MIN_RUN_S, NUM_TOGETHER
from tests.bench.mix_times import Phases

PAGE_NAME: Final = "real-mix.md"
_PAGE: Final = """# A real mix of trainings, beside the simulator

What `frenzy simulate` predicts, held against real trainings. This page is written by

```sh
make bench-mix ARGS=--docs    # under half an hour on two cores
```

Measured on {date}, on {machine}.

{num_jobs} trainings of {num_sizes} sizes of GPT-2 (width {least} to {most}), of lengths between ten seconds and a
minute and a half on the fastest GPU, drawn with seed {seed}, arrive within {span:.0f} s. The cluster is the laptop's,
seven virtual GPUs of three types, each at {speed:g} of its rate, so that the machine's cores can keep up with all of
them at once. Each job is a DAG in an embedded Airflow of its policy, each virtual GPU a process that really trains with
DeepSpeed. Nobody names a GPU type or count. Least time between two moves: {min_run:g} s.

The simulation gets the same jobs with the plans that MARP made before anything ran, the times at which their DAGs are
to be triggered, and two times taken from two jobs that ran alone before the mix: from the trigger until the scheduler
knows a job, and how long an attempt holds its GPUs beside its steps. All times are from the trigger of a job's DAG.

| policy | | average completion time, s | average time to the first start, s | makespan, s | moves per job |
|---|---|---|---|---|---|
{rows}

{spread}

{between}

## What the error is made of

On a laptop the starting workers of all jobs share the cores with each other, with Airflow and with those that train; a
cluster's nodes bring their own. So the prediction is made once more with its two times taken from {num_together} small
jobs that were triggered at once before the mix, as many as the cluster has types of GPUs.

Then the simulation is done again, from the two times of jobs alone and ever more of what the real run showed: when the
scheduler knew each job; how long the attempts of each job held GPUs beside their steps; how long each job's steps took.
These explain the error and predict nothing. What is left in the last column is mostly decisions: other plans or another
order than in the real run, and moves.

| policy | measured | predicted | from {num_together} at once | real arrivals | and time beside steps | and step times |
|---|---|---|---|---|---|---|
{causes}

Average completion time in seconds; in brackets the error against what was measured.

Where the time of a job went, in seconds: the average over the jobs of the mix, and over those that ran before it, alone
and {num_together} at once.

{phases}

{meaning}

{steps}
"""

_COLUMNS: Final[tuple[tuple[str, Callable[[Phases], float], str], ...]] = (
    ("to queue", lambda each: each.to_queue, "from the trigger until the scheduler knew the job: two tasks of its DAG"),
    ("waiting", lambda each: each.waiting, "in the queue"),
    ("launching", lambda each: each.launching, "from the grant of GPUs until the launch task had started the workers"),
    ("starting", lambda each: each.starting, "from there to the first step: libraries, data, model, engine"),
    ("steps", lambda each: each.stepping, "the steps' own times"),
    ("between", lambda each: each.between, "from the first step to the last, beside them: telemetry"),
    ("leaving", lambda each: each.leaving, "from the last step until the GPUs were free: checkpoint, model, end"),
    ("again", lambda each: each.again, "after a move, until the job waited for its next GPUs"),
)


def write_page(
    results: Sequence[PolicyRuns], jobs: Sequence[MixJob], seed: int, speed: float, folder: Path = DOCS
) -> Path:
    """Write the page into ``folder``; the page."""
    widths = [size.width for size in SIZES]
    page = folder / PAGE_NAME
    page.write_text(
        _PAGE.format(
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            machine=machine(),
            num_jobs=len(jobs),
            num_sizes=len(SIZES),
            least=min(widths),
            most=max(widths),
            seed=seed,
            span=jobs[-1].at_s,
            speed=speed,
            min_run=MIN_RUN_S,
            num_together=NUM_TOGETHER,
            rows="\n".join(row for each in results for row in _rows(each)),
            spread=_spread(len(results[0].mixes)),
            between="\n".join(_between(results[0], each) for each in results[1:]),
            causes="\n".join(_causes(each) for each in results),
            phases=_phases(results),
            meaning="\n".join(f"- *{name}*: {meaning}." for name, _, meaning in _COLUMNS),
            steps="\n".join(_steps(each) for each in results),
        ),
        encoding="utf-8",
    )
    return page


def _rows(result: PolicyRuns) -> list[str]:
    real, expected = result.measured, result.expected.predicted
    error = " | ".join(
        _percent(simulated, found)
        for simulated, found in (
            (expected.jct_s, real.jct_s),
            (expected.queue_s, real.queue_s),
            (expected.makespan_s, real.makespan_s),
        )
    )
    return [
        f"| `{result.policy}` | measured | {_cells(result.each_measured)} |",
        f"| | simulated | {_cells([each.predicted for each in result.forecasts])} |",
        f"| | error of the simulation | {error} | {expected.moves - real.moves:+.2f} |",
    ]


def _cells(runs: Sequence[MixFigures]) -> str:
    columns = ((lambda run: run.jct_s, 1), (lambda run: run.queue_s, 1), (lambda run: run.makespan_s, 0))
    times = [_cell([figure(run) for run in runs], digits) for figure, digits in columns]
    return " | ".join([*times, _cell([run.moves for run in runs], 2)])


def _cell(values: Sequence[float], digits: int) -> str:
    """The mean, and of several runs the least and the most."""
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _percent(value: float, of: float) -> str:
    return f"{100 * (value / of - 1):+.0f} %" if of else "-"


def _spread(num_runs: int) -> str:
    if num_runs == 1:
        few = "a difference of a few percent between measured averages says nothing about the policies"
        return f"Each policy ran once: {few}."
    return f"Each policy ran {num_runs} times, in turn: means of the runs, in brackets the least and the most."


def _between(one: PolicyRuns, other: PolicyRuns) -> str:
    real = _percent(one.measured.jct_s, other.measured.jct_s)
    simulated = _percent(one.expected.predicted.jct_s, other.expected.predicted.jct_s)
    names = f"`{one.policy}` against `{other.policy}`"
    return f"- {names}, average completion time: {real} measured, {simulated} simulated."


def _causes(result: PolicyRuns) -> str:
    real, told = result.measured.jct_s, result.expected
    cells = [
        f"{each.jct_s:.1f} ({_percent(each.jct_s, real)})"
        for each in (told.predicted, told.crowded, told.arrivals, told.beside, told.steps)
    ]
    return f"| `{result.policy}` | {real:.1f} | {' | '.join(cells)} |"


def _phases(results: Sequence[PolicyRuns]) -> str:
    head = " | ".join(name for name, _, _ in _COLUMNS)
    lines = [f"| policy | | {head} |", f"|---|---|{'---|' * len(_COLUMNS)}"]
    for result in results:
        lines.append(_phases_row(f"`{result.policy}`", "in the mix", result.phases))
        lines.append(_phases_row("", "alone", result.phases_alone))
        lines.append(_phases_row("", f"{NUM_TOGETHER} at once", result.phases_together))
    return "\n".join(lines)


def _phases_row(policy: str, which: str, found: Phases) -> str:
    cells = " | ".join(f"{pick(found):.1f}" for _, pick, _ in _COLUMNS)
    return f"| {policy} | {which} | {cells} |" if policy else f"| | {which} | {cells} |"


def _steps(result: PolicyRuns) -> str:
    errors = result.step_errors
    off = (
        f"off by {100 * median(errors):+.0f} % of the prediction (median of {len(errors)} attempts)"
        if errors
        else "unknown"
    )
    alone_s, together_s = result.phases_alone.beside_s, result.phases_together.beside_s
    before = f"{alone_s:.1f} s alone, {together_s:.1f} s with {NUM_TOGETHER} at once"
    beside = f"beside its steps an attempt took {result.beside_s:.1f} s in the mix, {before}"
    return f"- `{result.policy}`: step time {off};\n  {beside}."
