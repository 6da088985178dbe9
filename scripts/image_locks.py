"""Write the images' locks from requirements.lock: what each image needs of it, and nothing else.

    python scripts/image_locks.py           write docker/*/requirements.lock
    python scripts/image_locks.py --check   exit status 1 when one of them is not what it should be

The trainer's packages are those that frenzy.core and frenzy.trainer import, with the extra ``trackers``; Airflow's are
the project's dependencies with the extra ``postgres``. Both with all that these need, read from this environment.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[1]
PROJECT = "frenzy-airflow"
HEADER = """\
# The part of requirements.lock that the {image} image needs. Made by `make lock`; do not edit by hand.
"""


def main(arguments: list[str]) -> int:
    """Write the locks, or compare them."""
    stale = []
    for image, text in image_locks().items():
        file = CHECKOUT / "docker" / image / "requirements.lock"
        if "--check" not in arguments:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            stale.append(str(file.relative_to(CHECKOUT)))
    if stale:
        print(f"not what requirements.lock and the code say: {', '.join(stale)}; run: make lock", file=sys.stderr)
    return 1 if stale else 0


def image_locks() -> dict[str, str]:
    """Image to the text of its lock."""
    pins = locked_pins(CHECKOUT / "requirements.lock")
    roots = {"trainer": trainer_roots(), "airflow": project_roots()}
    return {
        image: HEADER.format(image=image)
        + "".join(f"{name}=={pins[name]}\n" for name in sorted(_closure(wanted, pins)))
        for image, wanted in roots.items()
    }


def locked_pins(lock: Path) -> dict[str, str]:
    """Normalised name to version."""
    lines = (line for line in lock.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] != "#")
    return dict(line.split("==", 1) for line in lines)


def trainer_roots() -> tuple[Requirement, ...]:
    """The distributions whose packages the trainer's image imports."""
    by_package = packages_distributions()
    modules = sorted({module for file in _trainer_files() for module in _imported(file)} & set(by_package))
    imported = (Requirement(name) for module in modules for name in by_package[module] if _name(name) != PROJECT)
    return (*imported, *_requirements(_project()["optional-dependencies"]["trackers"]))


def project_roots() -> tuple[Requirement, ...]:
    """The project's own dependencies, and those of the extra ``postgres``."""
    project = _project()
    return _requirements((*project["dependencies"], *project["optional-dependencies"]["postgres"]))


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _requirements(texts: Iterable[str]) -> tuple[Requirement, ...]:
    return tuple(map(Requirement, texts))


def _trainer_files() -> Iterator[Path]:
    package = CHECKOUT / "plugins/frenzy"
    for part in ("core", "trainer"):
        yield from sorted((package / part).rglob("*.py"))


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _closure(roots: Iterable[Requirement], pins: dict[str, str]) -> set[str]:
    """Names of all that ``roots`` need here, themselves included; what the lock leaves out is left out."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = list(roots)
    while waiting:
        wanted = waiting.pop()
        key = (_name(wanted.name), frozenset(wanted.extras))
        if key in found or key[0] not in pins:
            continue
        found.add(key)
        waiting += _needs(wanted)
    return {name for name, _ in found}


def _needs(wanted: Requirement) -> Iterator[Requirement]:
    try:
        texts = distribution(wanted.name).requires or []
    except PackageNotFoundError as error:
        raise SystemExit(f"{wanted.name} is not installed here; run: make env") from error
    for each in map(Requirement, texts):
        extras = wanted.extras or {""}
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield each


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
