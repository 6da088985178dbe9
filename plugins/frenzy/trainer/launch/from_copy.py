"""``python FOLDER``, of a folder that ``copy_launcher`` wrote: ``python -m frenzy.trainer.launch`` by that copy.

Its ``__main__.py`` is this file. Any Python may meet it, so it needs nothing but the standard library. Frenzy's code
goes before what the image has; the packages of others that are beside it are for an image that lacks them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

BESIDE = "beside"
_OLDEST = (3, 11)
_MODULE = "frenzy.trainer.launch"
# ExitCode.BAD_CONFIG_OR_DATA, which an older Python cannot import.
_REFUSED = 99


def main() -> None:
    """Become the launcher."""
    if sys.version_info[:2] < _OLDEST:
        found, needed = (".".join(map(str, each)) for each in (sys.version_info[:3], _OLDEST))
        sys.stderr.write(f"The image's Python is {found}; the launcher of scripts needs {needed} or newer.\n")
        sys.exit(_REFUSED)
    variables = {**os.environ, "PYTHONPATH": python_path(Path(__file__).resolve().parent, os.environ)}
    os.execve(sys.executable, [sys.executable, "-m", _MODULE, *sys.argv[1:]], variables)  # noqa: S606  # words, no shell


def python_path(folder: Path, given: Mapping[str, str]) -> str:
    """PYTHONPATH by which ``folder`` goes before all else, and of what is beside it only what is missing is found."""
    beside = sorted(each for each in (folder / BESIDE).iterdir() if importlib.util.find_spec(each.name) is None)
    return os.pathsep.join([str(folder), *filter(None, [given.get("PYTHONPATH")]), *map(str, beside)])


if __name__ == "__main__":
    main()
