"""Install the pinned torch, and never gigabytes of CUDA by accident.

Run with the environment's own interpreter (standard library and pip only)::

    python scripts/torch_wheel.py requirements.lock

First pip is asked, without downloading anything, which wheel it would take. Only when that wheel
brings NVIDIA packages and the machine has no NVIDIA GPU is the CPU wheel fetched from PyTorch's own
index instead. ``FRENZY_TORCH=cpu`` or ``FRENZY_TORCH=cuda`` decides by hand.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

CPU_INDEX_URL = "https://download.pytorch.org/whl/cpu"
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
    """Version and CUDA packages of the wheel pip would take; downloads metadata only.

    Raises SetupError when pip finds no such wheel.
    """
    options = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--only-binary=:all:")
    answer = pip(*options, "--report", "-", *index, requirement)
    if answer.returncode != 0:
        raise SetupError(f"pip finds no wheel for {requirement}:\n{answer.stderr.strip()[-1500:]}")
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
    """``cpu`` or ``cuda``, and why."""
    chosen = os.environ.get("FRENZY_TORCH", "").strip().lower()
    if chosen in {"cpu", "cuda"}:
        return chosen, f"FRENZY_TORCH={chosen}"
    if chosen:
        raise SetupError(f"FRENZY_TORCH is {chosen!r}; allowed: cpu, cuda, or unset to look for a GPU.")
    if has_nvidia_gpu():
        return "cuda", "an NVIDIA GPU was found"
    return "cpu", "no NVIDIA GPU was found"


def install(requirement: str, *index: str) -> None:
    """Install exactly ``requirement``; its dependencies come from the lock afterwards."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    if subprocess.run([*command, *index, requirement], check=False).returncode != 0:
        raise SetupError(f"pip could not install {requirement}.")


def choose_source(requirement: str, build: str) -> tuple[str, list[str], tuple[str, ...]]:
    """Version, CUDA packages and pip's index options of the wheel to install.

    Raises SetupError when only a CUDA wheel is in reach and the CPU build is wanted.
    """
    version, cuda_packages = candidate(requirement)
    if build == "cuda" or not cuda_packages:
        return version, cuda_packages, ()
    print(f"torch: the index offers {version} with {len(cuda_packages)} CUDA packages; looking for the CPU build")
    cpu_index = ("--index-url", CPU_INDEX_URL)
    try:
        version, cuda_packages = candidate(requirement, *cpu_index)
    except SetupError as error:
        raise SetupError(
            f"The CPU build of {requirement} is not in reach at {CPU_INDEX_URL}, and the wheel of the configured "
            f"index would add gigabytes of CUDA.\nPut a CPU wheel where pip looks (PIP_FIND_LINKS=<folder>), "
            f"or accept CUDA with FRENZY_TORCH=cuda.\n{error}"
        ) from error
    return version, cuda_packages, cpu_index


def main(lock: Path) -> None:
    """Install torch as the lock pins it, in the build this machine wants."""
    requirement = pinned_torch(lock)
    build, why = wanted_build()
    present = installed_version()
    if present is not None and present.split("+")[0] == requirement.partition("==")[2]:
        print(f"torch: {present} is already installed (wanted: {build}, {why})", flush=True)
        return
    version, cuda_packages, index = choose_source(requirement, build)
    got = "with CUDA" if cuda_packages else "CPU build"
    print(f"torch: installing {version}, {got} ({why}; FRENZY_TORCH=cpu|cuda overrides)", flush=True)
    if build == "cuda" and not cuda_packages:
        print("torch: this wheel brings no CUDA packages of its own; check torch.cuda.is_available()", flush=True)
    install(requirement, *index)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except SetupError as error:
        sys.exit(f"torch: {error}")
