"""Local paths of a specification are made absolute where it is submitted: the workers stand elsewhere.

A path that is found below none of the folders is left alone: the data of a run may be made by an earlier task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from frenzy.core.values.job import TOKENIZER_KINDS, TrainingJob

PATH_FIELDS: Final = (
    ("data", "path"),
    ("validation", "path"),
    ("model", "path"),
    ("model", "tokenizer"),
    ("checkpoint", "warm_start"),
    ("workload", "folder"),
)


def anchored(job: TrainingJob, folders: Sequence[Path], *, may_leave: bool = False) -> TrainingJob:
    """``job`` with each relative path or pattern below the first of ``folders`` that has it; if none has, ``job``.

    may_leave: whether a path may lead out of the folder by ``..``, as its author's own may; whoever only stores a
    job learns nothing of what else is there.
    """
    for section, name in PATH_FIELDS:
        part: Any = getattr(job, section)
        given = getattr(part, name, None)
        if (name == "tokenizer" and given in TOKENIZER_KINDS) or (
            name == "warm_start" and job.checkpoint.newest_of is not None
        ):
            continue
        if not given or "://" in given or Path(given).is_absolute() or (".." in Path(given).parts and not may_leave):
            continue
        found = next((str(folder / given) for folder in folders if _has(folder, given)), None)
        if found is not None:
            job = replace(job, **{section: replace(part, **{name: found})})
    return job


def _has(folder: Path, given: str) -> bool:
    is_pattern = any(letter in given for letter in "*?[")
    try:
        return (folder / given).exists() or (is_pattern and any(folder.glob(given)))
    except (OSError, ValueError):  # no name of a file, no pattern
        return False
