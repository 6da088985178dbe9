"""Data that were prepared before a run had GPUs: what is frozen of them, and where they lie.

They lie beside the run directories, in a folder for each team. Names in it are digests of contents, so whoever of the
team has the same text, tokenizer and settings finds them; nobody's workers can write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from annotated_types import Ge, Le, Len

from frenzy.core.values.errors import ContractError
from frenzy.core.values.job import MAX_STEPS, TrainingJob
from frenzy.core.values.resource_plan import short_hash

FOLDER: Final = ".data"
HELPERS_SIGNS: Final = "progress-"
# As many as may help, and more than a data set of 4 GiB has work for.
MOST_PREPARERS: Final = 64
_NAME: Final = re.compile(r"[0-9a-f]{32}")
_Name = Annotated[str, Len(32, 32)]
_Count = Annotated[int, Ge(0), Le(10**15)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """What a run trains on. shards, tokenizer: the names of their folders; digest: of the tokens, in order.

    num_train and num_validation count sequences.
    """

    shards: _Name
    tokenizer: _Name
    digest: _Name
    num_tokens: _Count
    num_train: Annotated[int, Ge(1), Le(10**15)]
    num_validation: _Count
    total_steps: Annotated[int, Ge(1), Le(MAX_STEPS)]

    def check(self) -> None:
        """Raises ContractError for a name that is none: it would lead out of the team's folder."""
        for name in ("shards", "tokenizer", "digest"):
            value = getattr(self, name)
            if _NAME.fullmatch(value) is None:
                raise ContractError(f"PreparedData.{name}: {value!r} is not 32 hexadecimal digits")


@dataclass(frozen=True, slots=True)
class PreparedPaths:
    """The places of a team's prepared data, as strings joined with ``/`` (fsspec paths)."""

    folder: str

    @classmethod
    def beside(cls, run_dir: str, team: str) -> PreparedPaths:
        """Those of ``team`` at the storage of the run directory ``run_dir``."""
        return cls(f"{run_dir.rstrip('/').rpartition('/')[0]}/{FOLDER}/{team_folder(team)}")

    def shards(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def listing(self, name: str) -> str:
        """The file that says which shards there are, in order."""
        return f"{self.shards(name)}/shards.json"

    def tokenizer(self, name: str) -> str:
        return f"{self.folder}/tokenizer-{name}"

    def folders_of(self, prepared: PreparedData) -> Iterator[str]:
        """What workers read."""
        yield self.shards(prepared.shards)
        yield self.tokenizer(prepared.tokenizer)


def team_folder(team: str) -> str:
    """A name that is one folder whatever the team is called, and no other team's."""
    return f"{re.sub(r'[^A-Za-z0-9-]+', '-', team)}-{short_hash(team, length=8)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingSpec:
    """All that a process that prepares a run's data needs.

    number: how often the run's data were to be prepared, this time counted; its reports lie in a folder of that
    number. masked: as in RunRecord.
    """

    run_key: str
    number: int
    job: TrainingJob
    run_dir: str
    masked: tuple[str, ...] = ()

    @property
    def data(self) -> PreparedPaths:
        return PreparedPaths.beside(self.run_dir, self.job.team)

    @property
    def folder(self) -> str:
        """For the request and what answers it."""
        return f"{self.run_dir}/preparing-{self.number}"

    @property
    def request(self) -> str:
        return f"{self.folder}/request.json"

    @property
    def signs(self) -> str:
        """Where its Heartbeat is."""
        return f"{self.folder}/progress.json"

    def signs_of_helper(self, rank: int) -> str:
        """Where the Heartbeat is of one that helps, from rank 1 on; it counts what that one made."""
        return f"{self.folder}/{HELPERS_SIGNS}{rank}.json"

    @property
    def announced(self) -> str:
        """Where those who help read what there is to make."""
        return f"{self.folder}/announced.json"

    @property
    def result(self) -> str:
        return f"{self.folder}/result.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparingResult:
    """How it ended. exit_code as in ExitCode; detail: one sentence. prepared: where that is 0."""

    exit_code: int
    detail: str = ""
    prepared: PreparedData | None = None
