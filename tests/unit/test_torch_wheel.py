"""Which torch the set-up installs: decided from what pip offers, before anything large is downloaded."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from tests.script_files import load_script

from frenzy.settings import CHECKOUT

PIN = "torch==9.9.0"
CUDA = ("nvidia-cudnn-cu13==9.1; platform_system == 'Linux'", "triton==3.9")
ELSEWHERE = ("nvidia-cudnn-cu13==9.1; platform_system == 'Windows'", "sympy>=1", "nvidia-thing; extra == 'more'")


torch_wheel = load_script(CHECKOUT / "scripts/torch_wheel.py")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place where pip looks."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "FRENZY_TORCH"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def put_wheel(shelf: Path, version: str, requires: tuple[str, ...] = ()) -> None:
    """A wheel of torch with metadata and nothing else."""
    info = f"torch-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        "Name: torch",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    with zipfile.ZipFile(shelf / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_a_wheel_without_cuda_packages_is_taken_also_under_the_plain_version(shelf: Path) -> None:
    put_wheel(shelf, "9.9.0", ELSEWHERE)

    version, _ = torch_wheel.cpu_source(PIN)

    assert version == "9.9.0"


def test_the_cpu_build_is_preferred_to_the_plain_one(shelf: Path) -> None:
    put_wheel(shelf, "9.9.0", CUDA)
    put_wheel(shelf, "9.9.0+cpu")

    version, _ = torch_wheel.cpu_source(PIN)

    assert version == "9.9.0+cpu"


def test_cuda_is_refused_and_the_refusal_says_what_to_do(shelf: Path) -> None:
    put_wheel(shelf, "9.9.0", CUDA)

    with pytest.raises(torch_wheel.SetupError) as refusal:
        torch_wheel.cpu_source(PIN)

    for part in ("nvidia-cudnn-cu13", "triton", "PIP_FIND_LINKS", "FRENZY_TORCH=cuda"):
        assert part in str(refusal.value)


def test_no_wheel_at_all_is_told_as_such(shelf: Path) -> None:
    with pytest.raises(torch_wheel.SetupError, match="finds no wheel"):
        torch_wheel.candidate(PIN)


@pytest.mark.parametrize("build", ["cpu", "cuda", "cu126"])
def test_the_build_can_be_chosen_by_hand(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRENZY_TORCH", build)

    assert torch_wheel.wanted_build()[0] == build


def test_another_build_is_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRENZY_TORCH", "rocm")

    with pytest.raises(torch_wheel.SetupError, match="'rocm'.*cpu, cuda"):
        torch_wheel.wanted_build()


def test_a_build_for_one_cuda_release_comes_from_pytorchs_index_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setenv("FRENZY_TORCH", "cu126")
    monkeypatch.setattr(torch_wheel, "installed_version", lambda: None)
    monkeypatch.setattr(torch_wheel, "install", lambda *arguments: asked.append(arguments))

    torch_wheel.main(CHECKOUT / "requirements.lock")

    assert asked == [
        (
            torch_wheel.pinned_torch(CHECKOUT / "requirements.lock"),
            "--index-url",
            "https://download.pytorch.org/whl/cu126",
        )
    ]


def test_the_lock_pins_torch_without_a_build(tmp_path: Path) -> None:
    assert torch_wheel.pinned_torch(CHECKOUT / "requirements.lock").count("+") == 0
    (tmp_path / "empty.lock").write_text("numpy==2\n", encoding="utf-8")
    with pytest.raises(torch_wheel.SetupError, match="torch==<version>"):
        torch_wheel.pinned_torch(tmp_path / "empty.lock")
