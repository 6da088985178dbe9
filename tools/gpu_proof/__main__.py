"""``python scripts/gpu_proof.py --minutes 9``: the proof on this machine's GPU; on a CPU the same in small.

Figures are JSON lines in ``--output``. What is there is not tried again: run it until it exits with 0. Exit status 3
when the time ended it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from frenzy.core.memory.calibration import Calibration
from frenzy.core.values import codec
from frenzy.core.values.errors import FrenzyError
from frenzy.core.values.hardware import DeviceKind
from frenzy.trainer import env
from frenzy.trainer.launch.child import die_with_parent
from frenzy.trainer.measure.bench import card_facts
from tools.gpu_proof.figures_page import write_page

CHECKOUT: Final = Path(__file__).parents[2]
_MODULE: Final = "tools.gpu_proof"
_TIME_ENDED: Final = 3
_WHOLE_S: Final = 30 * 60.0


def main(given: list[str] | None = None) -> int:
    """Run, or write the page; the exit status."""
    started_s = time.monotonic()
    words = sys.argv[1:] if given is None else given
    arguments = _parser().parse_args(words)
    if arguments.docs:
        from tools.gpu_proof.parts import PARTS

        write_page(CHECKOUT, PARTS)
        return 0
    kind = _kind(arguments.device)
    end_s = arguments.until if arguments.until is not None else started_s + 60.0 * arguments.minutes
    path = os.pathsep.join([str(CHECKOUT / "plugins"), str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path.rstrip(os.pathsep)
    settled = [*words, "--until", str(end_s), "--device", kind]
    env.enter({}, virtual=kind is DeviceKind.VIRTUAL, arguments=settled, module=_MODULE)
    if arguments.with_parent:
        die_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _run(arguments, kind, end_s)
    except FrenzyError as error:
        sys.stderr.write(f"{error.reason.sentence}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="end before so many minutes are over")
    parser.add_argument("--small", action="store_true", help="models of megabytes on a card, too")
    parser.add_argument(
        "--device", choices=["auto", *DeviceKind], default="auto", help="auto: a GPU where torch sees one"
    )
    parser.add_argument(
        "--output", type=Path, default=CHECKOUT / "build/gpu-proof", help="folder of the lines, added to"
    )
    parser.add_argument("--scratch", type=Path, help="folder for up to 40 GiB that are removed again; default: /tmp's")
    parser.add_argument("--only", action="append", help="only this part (may be repeated)")
    parser.add_argument("--docs", action="store_true", help="write docs/gpu-figures.md from tests/data/gpu instead")
    parser.add_argument("--until", type=float, help="end before the monotonic clock shows so many seconds")
    parser.add_argument("--with-parent", action="store_true", help="be killed when the process that started this ends")
    return parser


def _kind(device: str) -> DeviceKind:
    if device != "auto":
        return DeviceKind(device)
    try:
        card_facts()
    except FrenzyError:
        return DeviceKind.VIRTUAL
    return DeviceKind.CUDA


def _run(arguments: argparse.Namespace, kind: DeviceKind, end_s: float) -> int:
    from tools.gpu_proof.attempts import Bench
    from tools.gpu_proof.parts import PARTS
    from tools.gpu_proof.proof import Session
    from tools.gpu_proof.scale import FULL, SMALL
    from tools.gpu_proof.this_machine import this_machine

    output: Path = arguments.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    calibration = codec.loads(Calibration, (CHECKOUT / "plugins/frenzy/adapters/calibration.json").read_text())
    with tempfile.TemporaryDirectory(prefix="frenzy-proof-", dir=arguments.scratch) as folder:
        bench = Bench(
            machine=this_machine(kind),
            scale=SMALL if arguments.small or kind is DeviceKind.VIRTUAL else FULL,
            calibration=calibration,
            folder=Path(folder),
            output=output,
            text=CHECKOUT / "include/data/tinyshakespeare.txt",
        )
        session = Session(bench, output / "figures.jsonl", total_s=_WHOLE_S, end_s=end_s)
        done = session.run([each for each in PARTS if arguments.only is None or each.name in arguments.only])
    return 0 if done else _TIME_ENDED


def _stop(number: int, frame: object) -> None:
    """Leave by way of every ``finally``: up to 40 GiB are to be removed."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
