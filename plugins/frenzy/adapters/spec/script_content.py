"""A digest of a script's folder: when it changes, what earlier runs took says nothing of the next."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from frenzy.core.values.job import TrainingJob

# What decides how a script runs. Its outputs, data and caches do not.
_SUFFIXES: Final = (".py", ".sh", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini")
_OF_RUNS: Final = frozenset({"checkpoints", "outputs", "runs", "wandb", "mlruns", "node_modules"})
_HIDDEN_OR_OF_RUNS: Final = (".", "__", "checkpoint-")
# It is read in a process of Airflow's: what is more than that is no script's folder, and the rest does not count.
_MOST_ENTRIES: Final = 20_000
_MOST_FILES: Final = 2_000
_MOST_BYTES_OF_FILE: Final = 2**20
_MOST_BYTES: Final = 64 * 2**20
_LENGTH: Final = 12


def script_content(job: TrainingJob) -> str:
    """The digest of code and settings below the folder of ``job``'s script; empty where nothing can be read."""
    folder = None if job.workload is None else job.workload.folder
    if folder is None:
        return ""
    digest, num_bytes = hashlib.sha256(), 0
    for path in islice(_files(folder), _MOST_FILES):
        content = _content(path, min(_MOST_BYTES_OF_FILE, _MOST_BYTES - num_bytes))
        if content is not None:
            num_bytes += len(content)
            digest.update(b"%s\0%d\0" % (os.fsencode(os.path.relpath(path, folder)), len(content)) + content)
            if num_bytes >= _MOST_BYTES:
                break
    return digest.hexdigest()[:_LENGTH] if num_bytes else ""


def _content(path: str, most_bytes: int) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return None


def _files(folder: str) -> Iterator[str]:
    """In an order of their own; nothing below hidden folders, environments, and what runs write."""
    left, num_entries = [folder], 0
    while left:
        place = left.pop()
        entries = _entries(place, _MOST_ENTRIES - num_entries)
        if entries is None:
            return
        num_entries += len(entries)
        if place != folder and any(each.name == "pyvenv.cfg" for each in entries):
            continue
        yield from (each.path for each in entries if each.name.endswith(_SUFFIXES) and _is_read(each))
        left += [each.path for each in reversed(entries) if _is_searched(each)]


def _entries(place: str, most: int) -> list[os.DirEntry[str]] | None:
    """By name; none where the folder cannot be read, None where there are more than ``most``."""
    try:
        with os.scandir(place) as found:
            entries = sorted(islice(found, most + 1), key=lambda each: each.name)
    except OSError:
        return []
    return entries if len(entries) <= most else None


def _is_read(entry: os.DirEntry[str]) -> bool:
    """A file, or a link to one."""
    try:
        return not entry.name.startswith(".") and entry.is_file()
    except OSError:
        return False


def _is_searched(entry: os.DirEntry[str]) -> bool:
    is_left_out = entry.name in _OF_RUNS or entry.name.startswith(_HIDDEN_OR_OF_RUNS)
    return not is_left_out and entry.is_dir(follow_symlinks=False)
