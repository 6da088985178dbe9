"""What a checkpoint consists of: the manifest whose presence makes it exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from frenzy.core.lifecycle.resume import ParallelLayout

MANIFEST_NAME: Final = "manifest.json"
STATE_FORMAT: Final = "frenzy-fragments-1"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint; ``path`` is relative to the checkpoint's folder."""

    path: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TrainState:
    """The trainer's own state. Optimizer steps done, tokens seen, and what callbacks want kept.

    ``callback_states`` holds plain JSON values only. Random number generators are saved beside it.
    """

    step: int
    tokens_seen: int = 0
    callback_states: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """A complete checkpoint: where it was written from, and every file with size and digest.

    save_id tells two saves of the same step apart. state is a copy of what the state file says,
    so that a reader without the files knows the position.
    """

    step: int
    layout: ParallelLayout
    files: tuple[FileEntry, ...]
    save_id: str
    tokens_seen: int = 0
    format: str = STATE_FORMAT

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.files)

    @property
    def folder(self) -> str:
        """Name of the checkpoint's folder inside the checkpoints folder."""
        return step_folder(self.step)


def step_folder(step: int) -> str:
    return f"step-{step}"


def step_of_folder(folder: str) -> int | None:
    """The step a folder name stands for; None when it is no checkpoint's folder."""
    prefix, _, number = folder.partition("-")
    return int(number) if prefix == "step" and number.isdigit() else None
