"""Install the pinned torch, and never gigabytes of CUDA by accident.

Run with the environment's own interpreter (it needs the standard library and pip only)::

    python scripts/torch_wheel.py requirements.lock

Where there is no NVIDIA GPU the CPU build is wanted: pip is asked which wheel it would take from
PyTorch's CPU index (local wheels of its configuration included), then from its usual index; the first
one that brings no CUDA packages is installed, and without one nothing is. Where there is a GPU the
usual index's build is taken. ``FRENZY_TORCH=cpu`` or ``FRENZY_TORCH=cuda`` decides by hand;
``FRENZY_TORCH=cu126`` takes the build that PyTorch's index has under that name, here for CUDA 12.6.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:  # a fresh environment has no other copy than pip's
    from pip._vendor.packaging.requirements import Requirement

# One try: where that index is out of reach, the answer is known at once.
PYTORCH = "https://download.pytorch.org/whl/"
CPU_INDEX = ("--index-url", f"{PYTORCH}cpu", "--retries", "0", "--timeout", "20")
ONE_CUDA = re.compile(r"cu\d{3}")
CUDA_PACKAGE = re.compile(r"^(nvidia-|cuda-|triton)", re.IGNORECASE)


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def pinned_torch(lock: Path) -> str:
    """The lock's torch requirement, e.g. ``torch==2.13.0``."""
    match = re.search(r"^torch==\S+", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise SetupError(f"{lock} has no line 'torch==<version>'; run 'make lock'.")
    return match[0]


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter's pip and return what it said."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def installed_version() -> str | None:
    """The version of torch in this environment, if there is one."""
    shown = pip("list", "--format=json")
    packages = json.loads(shown.stdout or "[]")
    return next((each["version"] for each in packages if each["name"] == "torch"), None)


def candidate(requirement: str, *index: str) -> tuple[str, list[str]]:
    """Version and CUDA packages of the wheel pip would take.

    Reads metadata only, where the index serves it apart or in ranges of the wheel.
    Raises SetupError when pip finds no such wheel.
    """
    options = ("install", "--dry-run", "--ignore-installed", "--no-deps", "-qq", "--only-binary=:all:")
    answer = pip(*options, "--use-feature=fast-deps", "--report", "-", *index, requirement)
    if answer.returncode != 0:
        said = [line for line in answer.stderr.splitlines() if line.startswith("ERROR")] or [answer.stderr.strip()]
        raise SetupError("\n".join([f"pip finds no wheel for {requirement}:", *said]))
    metadata = json.loads(answer.stdout)["install"][0]["metadata"]
    needs = [Requirement(text) for text in metadata.get("requires_dist", [])]
    wanted = [each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    return metadata["version"], sorted(each.name for each in wanted if CUDA_PACKAGE.match(each.name))


def has_nvidia_gpu() -> bool:
    """Whether the NVIDIA driver reports at least one GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return any(Path("/proc/driver/nvidia/gpus").glob("*"))
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


def wanted_build() -> tuple[str, str]:
    """``cpu``, ``cuda`` or the name of one CUDA build, and why."""
    chosen = os.environ.get("FRENZY_TORCH", "").strip().lower()
    if chosen in {"cpu", "cuda"} or ONE_CUDA.fullmatch(chosen):
        return chosen, f"FRENZY_TORCH={chosen}"
    if chosen:
        allowed = "cpu, cuda, a build such as cu126, or unset to look for a GPU"
        raise SetupError(f"FRENZY_TORCH is {chosen!r}; allowed: {allowed}.")
    if has_nvidia_gpu():
        return "cuda", "an NVIDIA GPU was found"
    return "cpu", "no NVIDIA GPU was found"


def install(requirement: str, *index: str) -> None:
    """Install exactly ``requirement``; its dependencies come from the lock afterwards."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-deps"]
    if subprocess.run([*command, *index, requirement], check=False).returncode != 0:
        raise SetupError(f"pip could not install {requirement}.")


def cpu_source(requirement: str) -> tuple[str, tuple[str, ...]]:
    """Version of the first wheel in reach that brings no CUDA packages, and pip's options to get it.

    Raises SetupError when there is none.
    """
    refusals = []
    for name, index in (("PyTorch's CPU index", CPU_INDEX), ("pip's configured index", ())):
        try:
            version, cuda_packages = candidate(requirement, *index)
        except SetupError as error:
            refusals.append(f"- {name}: {error}")
            continue
        if not cuda_packages:
            return version, index
        refusals.append(f"- {name}: {version} would add {', '.join(cuda_packages)}: gigabytes")
    remedy = "Put a CPU wheel where pip looks (PIP_FIND_LINKS=<folder>), or accept CUDA: FRENZY_TORCH=cuda."
    raise SetupError("\n".join([f"no CPU build of {requirement} is in reach.", *refusals, remedy]))


def main(lock: Path) -> None:
    """Install torch as the lock pins it, in the build this machine wants."""
    requirement = pinned_torch(lock)
    build, why = wanted_build()
    present = installed_version()
    if present is not None and present.split("+")[0] == requirement.partition("==")[2]:
        print(f"torch: {present} is already installed (wanted: {build}, {why})", flush=True)
        return
    if build != "cpu":
        print(f"torch: installing {requirement} with CUDA, {why}; FRENZY_TORCH=cpu overrides", flush=True)
        install(requirement, *(() if build == "cuda" else ("--index-url", PYTORCH + build)))
        return
    version, index = cpu_source(requirement)
    print(f"torch: installing {version}, CPU build: {why}; FRENZY_TORCH=cuda overrides", flush=True)
    install(requirement, *index)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except SetupError as error:
        sys.exit(f"torch: {error}")
