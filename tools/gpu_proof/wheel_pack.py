"""The wheels that a GPU machine without a network lacks: ``python -m tools.gpu_proof.wheel_pack``.

They are the trainer's locked packages but for those that are there and those of trackers, for Python 3.12 on x86-64, in
the lock's versions.
A package without wheels is built here: DeepSpeed without its kernels, which the product does not use.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from frenzy.core.values.units import MIB

CHECKOUT: Final = Path(__file__).parents[2]
LOCK: Final = CHECKOUT / "docker/trainer/requirements.lock"
PRESENT: Final = Path(__file__).with_name("present_packages.txt")
TRACKERS: Final = Path(__file__).with_name("tracker_packages.txt")
_PYTHON: Final = "3.12"
# pip takes each name of a platform as it is written.
_PLATFORMS: Final = (*(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)), "manylinux2014_x86_64")
# Has no wheel; built for any Python, since nothing is compiled.
_BUILT: Final = ("deepspeed",)
_MOST_BYTES: Final = 50 * MIB


def main() -> int:
    """Gather, print sizes; 1 when the pack is larger than it may be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "build/gpu-pack", help="made anew")
    parser.add_argument("--present", type=Path, default=PRESENT, help="names of packages that are there, one a line")
    arguments = parser.parse_args()
    locked, present, trackers = (pins(each.read_text(encoding="utf-8")) for each in (LOCK, arguments.present, TRACKERS))
    wanted = lacking(locked, present | trackers)
    shutil.rmtree(arguments.folder, ignore_errors=True)
    gather(wanted, arguments.folder)
    return report(arguments.folder)


def pins(text: str) -> dict[str, str]:
    """Name to version of each line that is no comment; the version is empty where a line has none."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    named = (line.partition("==") for line in lines if line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in named}


def lacking(locked: dict[str, str], present: Iterable[str]) -> tuple[str, ...]:
    """Requirements of the packages that are not there."""
    there = set(present)
    return tuple(f"{name}=={version}" for name, version in locked.items() if name not in there)


def gather(wanted: Sequence[str], folder: Path) -> None:
    """Wheels of ``wanted`` into ``folder``; raises CalledProcessError where there is none."""
    built = [each for each in wanted if each.partition("==")[0] in _BUILT]
    ready = [each for each in wanted if each not in built]
    platforms = [word for each in _PLATFORMS for word in ("--platform", each)]
    target = ["--python-version", _PYTHON, "--implementation", "cp", *platforms]
    _pip("download", "--only-binary", ":all:", "--dest", str(folder), *target, *ready)
    if built:
        _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), *built)


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", words[0], "--quiet", "--no-deps", *words[1:]]
    subprocess.run(command, env={**os.environ, "DS_BUILD_OPS": "0"}, check=True)


def report(folder: Path) -> int:
    wheels = sorted(folder.glob("*.whl"), key=lambda each: -each.stat().st_size)
    for each in wheels:
        print(f"{each.stat().st_size / MIB:6.2f} MiB  {each.name}")
    total = sum(each.stat().st_size for each in wheels)
    print(f"{total / MIB:6.2f} MiB  {len(wheels)} wheels in {folder}; at most {_MOST_BYTES / MIB:.0f} MiB")
    return int(total > _MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
