"""The project's wheel, and an environment with the locked packages and nothing else of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from frenzy.settings import CHECKOUT

PROJECT = "frenzy_airflow"
_SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "dags", "docs", "include", "plugins")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel in it; commands run in ``folder``, which is empty at first."""

    python: Path
    folder: Path

    def run(self, *command: str, **variables: str) -> str:
        """What ``command`` prints; no variable that leads to the checkout is passed on."""
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
        environ["PATH"] = f"{self.python.parent}:{environ['PATH']}"
        places = {"AIRFLOW_HOME": str(self.folder / "airflow-home"), "NO_COLOR": "1", "COLUMNS": "200"}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**environ, **places, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, since setuptools leaves a build folder behind."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in _SOURCES:
        path = CHECKOUT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=unwanted)
        else:
            shutil.copy(path, source / name)
    _pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(target), str(source))
    (made,) = target.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A clean Airflow with the wheel: the locked packages by links, which takes no time."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin/python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if PROJECT not in each.name and each.name != "__pycache__":
            (packages / each.name).symlink_to(each)
    _pip("--python", str(python), "install", "--no-deps", "--no-index", "--quiet", str(wheel))
    for name in ("airflow",):
        _script(home / "bin" / name, python)
    return Installed(python, tmp_path_factory.mktemp("empty"))


def _script(path: Path, python: Path) -> None:
    path.write_text(f"#!{python}\nfrom airflow.__main__ import main\nmain()\n", encoding="utf-8")
    path.chmod(0o755)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
