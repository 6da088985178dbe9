"""A digest of a script's folder: when it changes, what earlier runs took says nothing of the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from frenzy.core.values.job import TrainingJob
from frenzy.core.values.resource_plan import short_hash

# What decides how a script runs. Its outputs, data and caches do not.
_SUFFIXES: Final = frozenset({".py", ".sh", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini"})
_OF_RUNS: Final = ("checkpoint", "outputs", "runs", "wandb", "mlruns", "node_modules")
_MOST_FILES: Final = 2_000
_MOST_BYTES: Final = 2**20


def script_content(job: TrainingJob) -> str:
    """The digest of code and settings below the folder of ``job``'s script; empty where nothing can be read."""
    folder = None if job.workload is None else job.workload.folder
    if folder is None:
        return ""
    parts: list[str] = []
    for path in _files(Path(folder)):
        if len(parts) >= 2 * _MOST_FILES:
            break
        try:
            with path.open("rb") as file:
                parts += [str(path.relative_to(folder)), file.read(_MOST_BYTES).decode("latin-1")]
        except OSError:
            continue
    return short_hash(*parts) if parts else ""


def _files(folder: Path) -> Iterator[Path]:
    """In an order of their own; nothing below hidden folders, environments, and what runs write."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not _is_left_out(Path(place, each)))
        yield from (
            path
            for name in sorted(names)
            if (path := Path(place, name)).suffix in _SUFFIXES and path.is_file() and not name.startswith(".")
        )


def _is_left_out(folder: Path) -> bool:
    is_environment = (folder / "pyvenv.cfg").exists()
    return folder.name.startswith((".", "__", *_OF_RUNS)) or is_environment
