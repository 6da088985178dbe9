"""Puts include/, dags/ and the pages of docs/ into wheels, as frenzy/checkout/.

An installed package finds there what a checkout has.

All else about the package is in pyproject.toml.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("dags", "include")


class BuildWithFiles(build_py):
    """The usual build; an editable install has the checkout itself."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in FOLDERS:
            target = Path(self.build_lib) / "frenzy/checkout" / name
            shutil.copytree(name, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        pages = Path(self.build_lib) / "frenzy/checkout/docs"
        pages.mkdir(exist_ok=True)
        for each in Path("docs").glob("*.md"):
            shutil.copy(each, pages)


setup(cmdclass={"build_py": BuildWithFiles})
