"""Predicted against measured memory, for ``frenzy marp measure``: the cases of a file, run through the trainer itself.

Each runs for a few steps; a line tells the peak that the closed form predicts beside the one the ranks measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
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
from frenzy.trainer.measure.record import Measurement, append_measurement, read_measurements
from frenzy.trainer.measure.run import Bench, library_versions, measure
from frenzy.trainer.measure.session import Limits, TimeIsUp, is_settled, left_over, run_session


def main() -> int:
    arguments = _parser().parse_args()
    calibration = codec.loads(Calibration, arguments.calibration.read_text())
    virtual = arguments.device == DeviceKind.VIRTUAL
    env.enter({}, virtual=virtual, arguments=sys.argv[1:], module="frenzy.trainer.measure")
    if arguments.with_parent:
        die_with_parent()
    try:
        for each in _measured(arguments, calibration):
            print(measurement_line(each), flush=True)
    except FrenzyError as error:
        sys.stderr.write(f"{error.reason.sentence}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, required=True, help="JSON file of the calibration")
    parser.add_argument("--text", type=Path, required=True, help="a text file to train on, or jsonl")
    parser.add_argument("--case-file", type=Path, required=True, help="the cases (JSON lines)")
    parser.add_argument(
        "--output", type=Path, required=True, help="every measurement (JSON lines), none twice; added to"
    )
    parser.add_argument("--tight", action="store_true", help="give each GPU just the memory predicted as required")
    parser.add_argument("--device", choices=list(DeviceKind), default=DeviceKind.VIRTUAL, help="what to run on")
    parser.add_argument("--gpus", type=int, default=4, help="virtual GPUs there are; ranks beyond are imagined")
    parser.add_argument("--bisect", action="store_true", help="also find the least memory each case runs in")
    parser.add_argument("--until", type=float, help="end before the monotonic clock shows so many seconds")
    parser.add_argument("--with-parent", action="store_true", help="be killed when the process that started this ends")
    return parser


def _measured(arguments: argparse.Namespace, calibration: Calibration) -> Iterator[Measurement]:
    bench, end_s = _bench(arguments, calibration), arguments.until
    signal.signal(signal.SIGTERM, _stop)
    limits = Limits(clock_s=time.monotonic, end_s=end_s)
    for found in run_session(_cases(arguments, bench), lambda case: _measured_in_time(case, bench, end_s), limits):
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
    """Those that the output does not already tell all about, on this card."""
    stored = [each for each in read_measurements(arguments.output) if each.card == bench.card]
    settled = frozenset(each.case.key for each in stored if is_settled(each, bisect=bench.bisect))
    lines = arguments.case_file.read_text().splitlines()
    return left_over((codec.loads(MeasureCase, line) for line in lines), settled)


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
