"""The page ``docs/real-mix.md``: the real mix beside its simulation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.jct_page import DOCS, machine
from tests.bench.mix_forecast import MixFigures, measured_figures
from tests.bench.mix_jobs import SIZES, MixJob
from tests.bench.mix_runs import MIN_RUN_S, MeasuredMix

PAGE_NAME: Final = "real-mix.md"
_PAGE: Final = """# A real mix of trainings, beside the simulator

What `frenzy simulate` predicts, held against real trainings. This page is written by

```sh
make bench-mix ARGS=--docs    # some 25 minutes on two cores
```

Measured on {date}, on {machine}.

{num_jobs} trainings of {num_sizes} sizes of GPT-2 (width {least} to {most}), of lengths between ten seconds and a
minute and a half on the fastest GPU, drawn with seed {seed}, arrive within {span:.0f} s. The cluster is the laptop's,
seven virtual GPUs of three types, each at {speed:g} of its rate, so that the machine's cores can keep up with all of
them at once. Each job is a DAG in an embedded Airflow of its policy, each virtual GPU a process that really trains with
DeepSpeed. Nobody names a GPU type or count. Least time between two moves: {min_run:g} s.

The simulation gets the same jobs and arrivals with the plans that MARP made before anything ran, and one time taken
from two jobs that ran alone before the mix: how long an attempt holds its GPUs beside its steps.

| policy | | average completion time, s | average time to the first start, s | makespan, s | moves per job |
|---|---|---|---|---|---|
{rows}

{steps}

What the simulator leaves out: a real machine's cores are shared by Airflow, starting workers and training ones, so that
steps and starts may take longer the more jobs are there; a job is known to the scheduler only some seconds after its
DAG was triggered; a stopped worker saves its state before it goes. How much of the error each of these makes was not
measured.

Each policy ran once: a difference of a few percent between measured averages says nothing about the policies.

{between}
"""


def write_page(
    pairs: Sequence[tuple[MeasuredMix, MixFigures]],
    jobs: Sequence[MixJob],
    seed: int,
    speed: float,
    folder: Path = DOCS,
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
            rows="\n".join(row for measured, expected in pairs for row in _rows(measured, expected)),
            steps="\n".join(_steps(measured) for measured, _ in pairs),
            between="\n".join(_between(pairs[0], each) for each in pairs[1:]),
        ),
        encoding="utf-8",
    )
    return page


def _rows(measured: MeasuredMix, expected: MixFigures) -> list[str]:
    real = measured_figures(measured)
    error = " | ".join(
        f"{100 * (simulated / found - 1):+.0f} %" if found else "-"
        for simulated, found in (
            (expected.jct_s, real.jct_s),
            (expected.queue_s, real.queue_s),
            (expected.makespan_s, real.makespan_s),
        )
    )
    return [
        f"| `{measured.policy}` | measured | {_cells(real)} |",
        f"| | simulated | {_cells(expected)} |",
        f"| | error of the simulation | {error} | {expected.moves - real.moves:+.2f} |",
    ]


def _cells(figures: MixFigures) -> str:
    return f"{figures.jct_s:.1f} | {figures.queue_s:.1f} | {figures.makespan_s:.0f} | {figures.moves:.2f}"


def _between(one: tuple[MeasuredMix, MixFigures], other: tuple[MeasuredMix, MixFigures]) -> str:
    real = measured_figures(one[0]).jct_s / measured_figures(other[0]).jct_s - 1
    simulated = one[1].jct_s / other[1].jct_s - 1
    names = f"`{one[0].policy}` against `{other[0].policy}`"
    return f"- {names}, average completion time: {100 * real:+.0f} % measured, {100 * simulated:+.0f} % simulated."


def _steps(measured: MeasuredMix) -> str:
    errors = [error for job in measured.jobs for error in job.step_errors]
    off = (
        f"off by {100 * median(errors):+.0f} % of the prediction (median of {len(errors)} attempts)"
        if errors
        else "unknown"
    )
    return f"- `{measured.policy}`: an attempt took {measured.frame_s:.1f} s beside its steps, alone; step time {off}."
