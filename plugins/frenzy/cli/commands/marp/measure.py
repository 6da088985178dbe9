"""``frenzy marp measure``: predictions held to the trainer's own runs on this machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from frenzy.cli.embedded.stack_processes import interrupted_by
from frenzy.cli.render.console import err, out, print_json
from frenzy.cli.render.tables import Grid, grid
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode, SpecError, Violation
from frenzy.core.values.hardware import DeviceKind

if TYPE_CHECKING:
    from frenzy.evaluation.score import Coverage, Errors
    from frenzy.evaluation.score_measured import GroupScore, MeasuredScore
    from frenzy.trainer.measure.case import MeasureCase
    from frenzy.trainer.measure.record import Measurement

_MODULE: Final = "frenzy.trainer.measure"
_TABLES_S: Final = 5.0
_HEADINGS: Final = ("", "cases", "median", "95th", "worst", "signed")


class MeasureDevice(StrEnum):
    """What cases are run on; auto: real GPUs where torch sees one."""

    AUTO = "auto"
    CUDA = "cuda"
    VIRTUAL = "virtual"


def measure(  # noqa: PLR0913  # one argument for each option of the command
    device: Annotated[MeasureDevice, typer.Option(help="What to run on; auto takes a GPU where torch sees one.")] = (
        MeasureDevice.AUTO
    ),
    family: Annotated[list[str] | None, typer.Option(help="Only this model family; may be repeated.")] = None,
    cases: Annotated[int | None, typer.Option(min=1, help="Number of cases; 20 random ones, or all of a grid.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of random cases, and of a grid's order.")] = 0,
    grid_name: Annotated[
        str | None, typer.Option("--grid", help="small, middle, or a YAML file, instead of random cases.")
    ] = None,
    max_parameters: Annotated[float, typer.Option(min=1, help="Leave out larger random models.")] = 60e6,
    world: Annotated[
        int | None, typer.Option(min=1, help="Data-parallel ranks of every case; ranks without a GPU are imagined.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="Virtual GPUs there are.")] = 4,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="End before so many minutes are over.")] = None,
    bisect: Annotated[bool, typer.Option("--bisect", help="Also find the least memory each case runs in.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="JSON lines, added to; a case that is in it is not run again.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Predict the cases of this file anew; nothing is run.")] = None,
    text: Annotated[Path | None, typer.Option(help="The text to train on; the project's sample by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
) -> int:
    """Train small jobs on this machine, and compare predicted with measured memory.

    Exit status 1 when a case ran out of memory or failed.
    """
    started_s = time.monotonic()
    if replay is not None:
        measurements = _replayed(replay)
    else:
        kind = _kind(device)
        chosen = _cases(grid_name, family or [], cases=cases, seed=seed, max_parameters=max_parameters, kind=kind)
        chosen = [_in_world(each, world) for each in chosen]
        options = ["--device", kind, "--gpus", str(gpus), "--text", str(_text(text))]
        options += ["--bisect"] if bisect else []
        options += [] if minutes is None else ["--until", str(_end_s(started_s, minutes))]
        measurements = _measured(chosen, options, output, quiet=as_json)
    return _report(measurements, as_json=as_json)


def _kind(device: MeasureDevice) -> DeviceKind:
    if device is not MeasureDevice.AUTO:
        return DeviceKind(device)
    import torch

    return DeviceKind.CUDA if torch.cuda.is_available() else DeviceKind.VIRTUAL


def _end_s(started_s: float, minutes: float) -> float:
    """When the last case must have ended, so that the tables are printed within the time."""
    total_s = 60.0 * minutes
    return started_s + total_s - min(_TABLES_S, 0.1 * total_s)


def _text(given: Path | None) -> Path:
    from frenzy.settings import CHECKOUT

    text = given or CHECKOUT / "include/data/tinyshakespeare.txt"
    if not text.is_file():
        raise SpecError([Violation(path="--text", value=repr(str(text)), allowed="the path of a text file")])
    return text.absolute()


def _cases(  # noqa: PLR0913  # the options that choose cases
    grid_name: str | None,
    families: Sequence[str],
    *,
    cases: int | None,
    seed: int,
    max_parameters: float,
    kind: DeviceKind,
) -> list[MeasureCase]:
    from frenzy.trainer.measure.case_grid import grid_cases
    from frenzy.trainer.measure.random_cases import FAMILIES, RandomCases

    unknown = [each for each in families if each not in FAMILIES]
    if unknown and grid_name is None:
        allowed = f"one of {', '.join(FAMILIES)}"
        raise SpecError([Violation(path="--family", value=repr(each), allowed=allowed) for each in unknown])
    if grid_name is None:
        drawn = RandomCases(families=families or FAMILIES, seed=seed, max_parameters=max_parameters, kind=kind)
        return list(itertools.islice(drawn.draw(), cases or 20))
    whole = grid_cases(_grid(grid_name), name=grid_name, seed=seed)
    wanted = [each for each in whole if not families or each.family in families]
    if not wanted:
        found = sorted({each.family for each in whole})
        raise SpecError(
            [
                Violation(
                    path="--family", value=repr(list(families)), allowed=f"a family of the grid: {', '.join(found)}"
                )
            ]
        )
    return wanted[:cases]


def _grid(name: str) -> Mapping[str, Any]:
    from frenzy.adapters.spec.yaml_core import FILE, load_yaml
    from frenzy.trainer.measure.case_grid import GRIDS

    if name in GRIDS:
        return GRIDS[name]
    allowed = f"{', '.join(GRIDS)}, or a YAML file with the entries of docs/memory.md"
    try:
        read = load_yaml(Path(name).read_text(encoding="utf-8"), FILE)
    except (OSError, UnicodeDecodeError, SpecError) as error:
        raise SpecError([Violation(path="--grid", value=repr(name), allowed=allowed)]) from error
    if not isinstance(read, dict):
        raise SpecError([Violation(path="--grid", value=repr(name), allowed=allowed)])
    return read


def _in_world(case: MeasureCase, world: int | None) -> MeasureCase:
    return case if world is None else replace(case, dp=world)


def _measured(
    cases: Sequence[MeasureCase], options: Sequence[str], output: Path | None, *, quiet: bool
) -> list[Measurement]:
    """Run ``cases`` in an interpreter of their own; every measurement in ``output``, older ones too."""
    from frenzy.core.values import codec
    from frenzy.trainer.measure.record import read_measurements

    with tempfile.TemporaryDirectory(prefix="frenzy-cases-") as folder:
        stored = Path(folder) / "measured.jsonl" if output is None else output.absolute()
        read_measurements(stored)  # a file of another kind is refused before anything is run or added
        listed = Path(folder) / "cases.jsonl"
        listed.write_text("".join(f"{codec.dumps(each)}\n" for each in cases), encoding="utf-8")
        _run([*options, "--case-file", str(listed), "--output", str(stored)], quiet=quiet)
        return read_measurements(stored)


def _run(options: Sequence[str], *, quiet: bool) -> None:
    """The trainer's measurement, its progress on stdout, or on stderr beside ``--json``; ended with this process."""
    from frenzy.adapters.calibration_file import DEFAULT_FILE

    command = [sys.executable, "-m", _MODULE, "--with-parent", "--calibration", str(DEFAULT_FILE), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    stdout = sys.stderr if quiet else None
    with interrupted_by(signal.SIGTERM), subprocess.Popen(command, env=environment, stdout=stdout) as process:
        try:
            status = process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            raise
    if status != 0:
        raise PermanentError(
            Reason(
                code=ReasonCode.WORKER_CRASHED,
                detail=f"the measurement ended with {status}; its last output is above.",
                remedy="Run it again with the same --output: measured cases are kept.",
            )
        )


def _replayed(file: Path) -> list[Measurement]:
    from frenzy.adapters.calibration_file import default_calibration
    from frenzy.trainer.measure.__main__ import measurement_line
    from frenzy.trainer.measure.record import replayed

    if not file.is_file():
        raise SpecError([Violation(path="--replay", value=repr(str(file)), allowed="a file of measurements")])
    found = list(replayed(file, default_calibration()))
    for each in found:
        err().print(measurement_line(each), soft_wrap=True)
    return found


def _report(measurements: Sequence[Measurement], *, as_json: bool) -> int:
    from frenzy.evaluation.score_measured import score_measured
    from frenzy.trainer.measure.record import Outcome

    score = score_measured(measurements)
    if as_json:
        print_json({"score": score, "measurements": measurements})
    else:
        for each in _tables(score):
            out().print(each)
    failed = (Outcome.FAILED, Outcome.OUT_OF_MEMORY)
    return int(any(each.outcome in failed for each in measurements))


def _tables(score: MeasuredScore) -> Iterator[Grid | str]:
    yield _error_table("Errors of the predicted peak", [("all", score.errors)])
    yield _error_table("By family", _named(score.by_family))
    yield _error_table("By ZeRO stage", _named(score.by_stage))
    yield _error_table("By option (a case may have several)", _named(score.by_option))
    ended = ", ".join(f"{count} {outcome}" for outcome, count in score.outcomes.items())
    yield f"Cases: {ended or 'none'}; {score.unpredicted} ran that the closed form does not cover."
    yield f"Requirement enough: {_coverage(score.covered)}."
    yield f"Of these, against the least memory found: {_coverage(score.bisected)}."


def _named(groups: Sequence[GroupScore]) -> list[tuple[str, Errors]]:
    return [(each.name, each.errors) for each in groups]


def _error_table(title: str, named: Sequence[tuple[str, Errors]]) -> Grid:
    rows = [
        (name, str(each.count), *(_percent(value) for value in (each.median, each.p95, each.worst, each.signed)))
        for name, each in named
    ]
    return grid(title, _HEADINGS, rows, right=" ".join(_HEADINGS[1:]))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _coverage(coverage: Coverage) -> str:
    if coverage.share is None:
        return "no case"
    interval = f"{_percent(coverage.low)} to {_percent(coverage.high)}"
    return f"{coverage.covered} of {coverage.count} ({interval} with 95 % confidence)"
