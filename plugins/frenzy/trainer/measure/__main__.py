"""Predicted against measured memory: ``python -m frenzy.trainer.measure --cases 40 --seed 7``.

Runs random jobs and plans, or a list of them, for a few steps through the trainer itself, and
prints the peak that the closed form predicts beside the one the ranks measured.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from frenzy.core.memory.calibration import Calibration
from frenzy.core.values import codec
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.units import MIB
from frenzy.trainer import env
from frenzy.trainer.launch.child import die_with_parent
from frenzy.trainer.measure.bench import card_facts
from frenzy.trainer.measure.case import MeasureCase
from frenzy.trainer.measure.random_cases import RandomCases
from frenzy.trainer.measure.record import Measurement, Outcome, append_measurement, read_measurements, replayed
from frenzy.trainer.measure.run import Bench, library_versions, measure
from frenzy.trainer.measure.session import Limits, TimeIsUp, is_settled, left_over, run_session

__all__ = ["MeasureCase", "Measurement", "main", "measurement_line", "replayed"]


def main() -> int:
    arguments = _parser().parse_args()
    calibration = codec.loads(Calibration, arguments.calibration.read_text())
    if arguments.replay is not None:
        return print_table(replayed(arguments.replay, calibration), arguments.tolerance)
    if arguments.text is None:
        sys.stderr.write("--text is needed to run cases\n")
        return 2
    # From the process's own start: what comes before (imports, a new interpreter) is part of the time.
    end_s = arguments.until if arguments.until is not None else _end_s(arguments.minutes)
    given = sys.argv[1:] if end_s is None else [*sys.argv[1:], "--until", str(end_s)]
    env.enter({}, virtual=arguments.device == DeviceKind.VIRTUAL, arguments=given, module="frenzy.trainer.measure")
    if arguments.with_parent:
        die_with_parent()
    try:
        return print_table(_measured(arguments, calibration, end_s), arguments.tolerance)
    except FrenzyError as error:
        sys.stderr.write(f"{error.reason.sentence}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="number of random cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random cases")
    parser.add_argument("--options", action="store_true", help="with random losses, optimizers, adapters and so on")
    parser.add_argument("--max-parameters", type=float, default=100e6, help="no larger models")
    parser.add_argument("--family", action="append", help="model family (may be repeated); default gpt2 and llama")
    parser.add_argument("--calibration", type=Path, required=True, help="JSON file of the calibration")
    parser.add_argument("--text", type=Path, help="a text file to train on, or jsonl")
    parser.add_argument("--output", type=Path, help="JSON lines of every measurement, added to")
    parser.add_argument("--replay", type=Path, help="predict the measurements of this file anew; nothing is run")
    parser.add_argument("--tight", action="store_true", help="give each GPU just the memory predicted as required")
    parser.add_argument("--tolerance", type=float, default=0.08, help="relative error above which a case is wrong")
    parser.add_argument("--rerun", type=Path, help="run the cases of this file again, instead of random ones")
    parser.add_argument("--case-file", type=Path, help="run these cases (JSON lines), but for those in --output")
    parser.add_argument("--only", default="", help="only cases whose label contains this")
    parser.add_argument("--device", choices=list(DeviceKind), default=DeviceKind.VIRTUAL, help="what to run on")
    parser.add_argument("--gpus", type=int, default=4, help="virtual GPUs there are; ranks beyond are imagined")
    parser.add_argument("--bisect", action="store_true", help="also find the least memory each case runs in")
    parser.add_argument("--minutes", type=float, help="end before so many minutes are over")
    parser.add_argument("--until", type=float, help="end before the monotonic clock shows so many seconds")
    parser.add_argument("--with-parent", action="store_true", help="be killed when the process that started this ends")
    return parser


def _end_s(minutes: float | None) -> float | None:
    """When the session ends, in seconds of the monotonic clock, which a new interpreter goes on reading."""
    return None if minutes is None else time.monotonic() + 60.0 * minutes


def _measured(arguments: argparse.Namespace, calibration: Calibration, end_s: float | None) -> Iterator[Measurement]:
    bench = _bench(arguments, calibration)
    cases = [each for each in _cases(arguments, bench) if arguments.only in each.label]
    signal.signal(signal.SIGTERM, _stop)
    limits = Limits(clock_s=time.monotonic, end_s=end_s)
    for found in run_session(cases, lambda case: _measured_in_time(case, bench, end_s), limits):
        if arguments.output is not None:
            append_measurement(arguments.output, found)
        yield found


def _bench(arguments: argparse.Namespace, calibration: Calibration) -> Bench:
    virtual = Bench(
        calibration=calibration,
        text=arguments.text,
        num_gpus=arguments.gpus,
        versions=library_versions(),
        tight=arguments.tight,
        bisect=arguments.bisect,
    )
    if arguments.device == DeviceKind.VIRTUAL:
        return virtual
    card = card_facts()
    driver = {} if card.driver is None else {"driver": card.driver}
    return replace(
        virtual,
        kind=DeviceKind.CUDA,
        card=card.name,
        compute_capability=card.compute_capability,
        num_gpus=card.num_gpus,
        memory_bytes=card.memory_bytes,
        versions={**virtual.versions, **driver},
    )


def _measured_in_time(case: MeasureCase, bench: Bench, end_s: float | None) -> Measurement:
    """The measurement of ``case``. Raises TimeIsUp at ``end_s``; its processes end with this one."""
    if end_s is None:
        return measure(case, bench)
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, end_s - time.monotonic()))
    try:
        return measure(case, bench)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _give_up(number: int, frame: object) -> None:
    raise TimeIsUp


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _cases(arguments: argparse.Namespace, bench: Bench) -> list[MeasureCase]:
    if arguments.rerun is not None:
        return [each.case for each in read_measurements(arguments.rerun)]
    if arguments.case_file is not None:
        lines = arguments.case_file.read_text().splitlines()
        return left_over((codec.loads(MeasureCase, line) for line in lines), _settled(arguments, bench))
    drawn = RandomCases(
        families=arguments.family or ["gpt2", "llama"],
        seed=arguments.seed,
        max_parameters=arguments.max_parameters,
        options=arguments.options,
        kind=bench.kind,
    )
    return list(itertools.islice(drawn.draw(), arguments.cases))


def _settled(arguments: argparse.Namespace, bench: Bench) -> frozenset[str]:
    """Keys of the cases that the output already tells all about, on this card."""
    if arguments.output is None:
        return frozenset()
    stored = [each for each in read_measurements(arguments.output) if each.card == bench.card]
    return frozenset(each.case.key for each in stored if is_settled(each, bisect=bench.bisect))


# the table


def print_table(measurements: Iterable[Measurement], tolerance: float) -> int:
    """One line each, then median and worst error; 1 when a case failed or is off by more than ``tolerance``."""
    errors, wrong = [], 0
    for each in measurements:
        print(measurement_line(each), flush=True)
        wrong += each.outcome is not Outcome.REFUSED and (each.error is None or abs(each.error) > tolerance)
        errors += [] if each.error is None else [abs(each.error)]
    if errors:
        ninth = sorted(errors)[int(0.9 * (len(errors) - 1))]
        print(
            f"{len(errors)} cases: median {100 * statistics.median(errors):.2f} %, "
            f"90th percentile {100 * ninth:.2f} %, worst {100 * max(errors):.2f} %; {wrong} failed or wrong"
        )
    return int(wrong > 0)


def measurement_line(each: Measurement) -> str:
    """One line on one case: predicted, measured, error, and the point in time of the predicted peak."""
    what = f"{each.case.label:62s} {each.num_parameters / 1e6:6.2f}M"
    if each.measured_bytes is None:
        return f"{what} {each.outcome}: {each.detail}"
    measured = f"measured {each.measured_bytes / MIB:7.1f} MiB"
    needed = "" if each.needed_bytes is None else f" needs {each.needed_bytes / MIB:.1f} MiB"
    if each.prediction is None or each.error is None:
        return f"{what} {measured}{needed}, nothing predicted: no coefficients"
    predicted = f"predicted {each.prediction.peak_allocated_bytes / MIB:7.1f} MiB"
    return f"{what} {predicted} {measured} {100 * each.error:+6.2f} %  {each.prediction.at}{needed}"


if __name__ == "__main__":
    sys.exit(main())
