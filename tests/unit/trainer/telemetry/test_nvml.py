"""NVML is read through pynvml, against a small library that plays the driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from frenzy.trainer.telemetry.nvml import NvmlReader

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
PROGRAM = """
from frenzy.trainer.telemetry.nvml import NvmlReader
reader = NvmlReader.open({uuid!r})
print(None if reader is None else reader.read())
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    assert COMPILER is not None
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(HERE / "fake_nvml.c")], check=True)
    return folder


def _read(driver: Path, uuid: str, mode: str = "new") -> str:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(driver),
        "FAKE_NVML": mode,
        "PYTHONPATH": str(HERE.parents[2] / "plugins"),
    }
    command = [sys.executable, "-c", PROGRAM.format(uuid=uuid)]
    return subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout.strip()


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the fake driver with")


@needs_compiler
@pytest.mark.parametrize("uuid", ["1234", "GPU-1234"])
def test_device_is_found_by_uuid_and_read(driver: Path, uuid: str) -> None:
    assert _read(driver, uuid) == (
        f"NvmlReading(used_bytes={33 * 2**30}, utilisation=0.87, clock_reasons=4, ecc_errors=2)"
    )


@needs_compiler
def test_what_an_old_driver_cannot_say_is_none(driver: Path) -> None:
    assert "utilisation=None" in _read(driver, "1234", mode="old")
    assert "ecc_errors=None" in _read(driver, "1234", mode="old")


@needs_compiler
def test_unknown_device_has_no_reader(driver: Path) -> None:
    assert _read(driver, "5678") == "None"


def test_machine_without_a_driver_has_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert NvmlReader.open("1234") is None
