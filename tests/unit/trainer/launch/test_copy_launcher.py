"""A script runs where neither Frenzy nor any library is: by the copy of the launcher that its pod is given."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer.launching import Case

from frenzy.core.values import codec
from frenzy.core.values.hardware import DeviceKind
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.trainer.launch.copy_launcher import copy_launcher

LIBRARIES = ("annotated_types", "deepspeed", "frenzy", "fsspec", "numpy", "psutil", "pynvml", "torch", "xxhash")
SCRIPT = """
import json, os, pathlib
import frenzy_agent

import frenzy
folder = pathlib.Path(os.environ["FRENZY_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
for step in range(frenzy_agent.resume_step() + 1, int(os.environ["FRENZY_MAX_STEPS"]) + 1):
    frenzy_agent.step(step, loss=1.0 / step, total_steps=int(os.environ["FRENZY_MAX_STEPS"]))
    if os.environ["RANK"] == "0":
        place = folder / f"{step}.txt"
        place.write_text(str(step))
        frenzy_agent.checkpointed(place, step)
told = {"frenzy": frenzy.__file__, "path": os.environ["PYTHONPATH"], "world": os.environ["WORLD_SIZE"]}
pathlib.Path(os.environ["FRENZY_RUN_DIR"], "told-" + os.environ["RANK"]).write_text(json.dumps(told))
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume") / "launcher"
    copy_launcher(folder)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with nothing but the standard library."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    code = f"import importlib.util; print([each for each in {LIBRARIES} if importlib.util.find_spec(each)])"
    said = subprocess.run([folder / "bin/python", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
    return str(folder / "bin/python")


def spec_of(run_dir: Path, num_steps: int, attempt: int) -> LaunchSpec:
    job = {
        "workload": {"command": ["python", "-c", SCRIPT], "resumable": True, "image": "mine:1"},
        "memory": {"per_gpu": "1 GiB"},
    }
    case = Case(run_dir=str(run_dir), data="", job=job, num_gpus=2, num_steps=num_steps, attempt=attempt)
    return replace(case.spec(), gpu=replace(case.spec().gpu, kind=DeviceKind.CUDA))


def launched(python: str, launcher: Path, spec: LaunchSpec, **variables: str) -> AttemptResult:
    paths = RunPaths(spec.run_dir)
    place = Path(paths.spec(spec.attempt))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(codec.dumps(spec))
    words = [python, str(launcher), "--run-dir", spec.run_dir, "--attempt", str(spec.attempt)]
    said = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=100, check=False)
    result = codec.loads(AttemptResult, Path(paths.result(spec.attempt)).read_text())
    assert result.exit_code == said.returncode, said.stderr
    return result


def test_a_script_runs_reports_and_goes_on_in_a_python_without_any_library(
    bare: str, launcher: Path, tmp_path: Path
) -> None:
    first = launched(bare, launcher, spec_of(tmp_path, 3, 1))
    assert (first.exit_code, first.last_step, first.checkpoint_step) == (ExitCode.DONE, 3, 3), first
    again = launched(bare, launcher, spec_of(tmp_path, 5, 2))
    assert (again.exit_code, again.last_step, again.resumed_from_step) == (ExitCode.DONE, 5, 3), again
    told = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in (0, 1)]
    assert {each["world"] for each in told} == {"2"}


def test_the_copy_goes_before_a_package_that_the_image_has_and_the_images_own_paths_stay(
    launcher: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    (own / "frenzy").mkdir(parents=True)
    (own / "frenzy/__init__.py").write_text("raise ImportError('another release')")
    result = launched(sys.executable, launcher, spec_of(tmp_path, 1, 1), PYTHONPATH=str(own))
    assert result.exit_code == ExitCode.DONE, result
    told = json.loads((tmp_path / "told-0").read_text())
    assert told["frenzy"] == str(launcher / "frenzy/__init__.py")
    assert told["path"].split(":")[1:] == [str(launcher), str(own)], "and no library of ours before the image's"


def test_an_older_python_is_refused_by_its_version(launcher: Path) -> None:
    code = f"import runpy, sys; sys.version_info = (3, 10, 13); runpy.run_path({str(launcher)!r}, run_name='__main__')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == ExitCode.BAD_CONFIG_OR_DATA
    assert said.stderr == "The image's Python is 3.10.13; the launcher of scripts needs 3.11 or newer.\n"


def test_a_second_copy_takes_the_place_of_the_first_and_has_no_compiled_files(launcher: Path) -> None:
    (launcher / "frenzy/old.py").write_text("")
    copy_launcher(launcher)
    assert not (launcher / "frenzy/old.py").exists()
    assert [each.name for each in launcher.parent.iterdir()] == ["launcher"]
    assert {each.suffix for each in launcher.rglob("*")} & {".pyc", ".so"} == set()
