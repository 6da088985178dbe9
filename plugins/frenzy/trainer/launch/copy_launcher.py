"""``python -m frenzy.trainer.launch.copy_launcher FOLDER``: what starts a script, as files for an image that lacks it.

``python FOLDER`` then is ``python -m frenzy.trainer.launch``, for jobs with a ``workload``. Only Python code is copied,
which does not mind which Python runs it; compiled libraries are the image's own.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Final

from frenzy.trainer.launch import from_copy

_FRENZY: Final = Path(__file__).parents[2]
_PARTS: Final = ("core", "trainer", "agent")
# Of others, without which the launcher does not start.
_BESIDE: Final = ("annotated_types", "fsspec")


def copy_launcher(folder: Path) -> None:
    """Write ``folder`` anew; nobody sees it before it is whole."""
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    for part in _PARTS:
        _copy(_FRENZY / part, new / "frenzy" / part)
    shutil.copyfile(_FRENZY / "__init__.py", new / "frenzy/__init__.py")
    for name in _BESIDE:
        _copy(_folder_of(name), new / from_copy.BESIDE / name / name)
    shutil.copyfile(from_copy.__file__, new / "__main__.py")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


def _folder_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package} is installed", name=package)
    return Path(found.submodule_search_locations[0])


if __name__ == "__main__":
    copy_launcher(Path(sys.argv[1]))
