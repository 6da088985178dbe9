"""What a checkpoint consists of: the manifest whose presence makes it exist, and when it is complete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError
from frenzy.core.values.job import MAX_STEPS

MANIFEST_NAME: Final = "manifest.json"
STATE_FORMAT: Final = "frenzy-fragments-1"
# Of a script of the user's own: where its checkpoint is, which only the script can read.
SCRIPT_FORMAT: Final = "frenzy-script-1"
# How files begin that hold what is not trained.
FROZEN_FILES: Final = "frozen-"
_STEP_FOLDER: Final = re.compile(r"step-(0|[1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint; ``path`` is relative to the checkpoint's folder.

    xxh3_128: digest in hexadecimal digits, of its first ``head_bytes``, which have digests of all that follows, or of
    the whole file where that is 0. sha256: of whole files that were written before 2026-11-25, and of scripts' records.
    """

    path: str
    num_bytes: int
    xxh3_128: str = ""
    sha256: str = ""
    head_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """A complete checkpoint: where it was written from, and every file with size and digest.

    save_id tells two saves of the same step apart. rank_bytes_per_s: what the slowest rank wrote in a second, 0 where
    nobody measured, or too little was written to tell.
    """

    step: int
    layout: ParallelLayout
    files: tuple[FileEntry, ...]
    save_id: str
    tokens_seen: int = 0
    format: str = STATE_FORMAT
    rank_bytes_per_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.files)

    @property
    def folder(self) -> str:
        """Name of the checkpoint's folder inside the checkpoints folder."""
        return step_folder(self.step)

    @property
    def damage_note(self) -> str:
        """Name of the file in the folder by which a rank says that it found damage: the checkpoint is none any more."""
        return f"damaged-{self.save_id}.txt"


def step_folder(step: int) -> str:
    return f"step-{step}"


def step_of_folder(folder: str) -> int | None:
    """The step a folder name stands for; None when it is no checkpoint's folder."""
    match = _STEP_FOLDER.fullmatch(folder)
    step = int(match[1]) if match else None
    return step if step is not None and step <= MAX_STEPS else None


def complete_manifest(text: str | bytes | None, step: int, sizes: Mapping[str, int]) -> CheckpointManifest:
    """The manifest in ``text`` of the checkpoint of ``step``, which is complete; digests are not read.

    text: None where there is no manifest. sizes: bytes of each file, by its path in the checkpoint's folder.
    Raises ContractError that says what the checkpoint lacks.
    """
    if text is None:
        raise ContractError("it was never completed")
    manifest = codec.loads(CheckpointManifest, text)
    if manifest.format not in (STATE_FORMAT, SCRIPT_FORMAT):
        raise ContractError(f"its format is {manifest.format!r}, this release reads {STATE_FORMAT!r}")
    if manifest.step != step:
        raise ContractError(f"its manifest is of step {manifest.step}")
    if manifest.damage_note in sizes:
        raise ContractError(f"a rank found damage, which {manifest.damage_note} tells")
    for each in manifest.files:
        if "/" in each.path or each.path.startswith("."):
            raise ContractError("its manifest names a file outside the checkpoint's folder")
        size = sizes.get(each.path)
        if size != each.num_bytes:
            found = "is missing" if size is None else f"has {size} bytes, not {each.num_bytes}"
            raise ContractError(f"{each.path} {found}")
    return manifest
