"""Print this environment's packages as a lock file: everything but pip, wheel and the project itself."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions

HEADER = """\
# The whole resolution, pinned. Made by `make lock` from pyproject.toml (Python {python}); do not edit by hand.
# torch carries no local version label: scripts/torch_wheel.py picks the CPU or the CUDA build of this version.
"""
LEFT_OUT = frozenset({"frenzy-airflow", "pip", "wheel"})


def main() -> None:
    """Write the header and one sorted ``name==version`` line for each package."""
    pins = {
        re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower(): each.version.partition("+")[0]
        for each in distributions()
    }
    print(HEADER.format(python=".".join(map(str, sys.version_info[:2]))), end="")
    for name in sorted(set(pins) - LEFT_OUT):
        print(f"{name}=={pins[name]}")


if __name__ == "__main__":
    main()
