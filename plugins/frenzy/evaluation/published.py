"""Published measurements of training runs: what was run, what was seen, and why a row cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from frenzy.core.memory.torch_kernels import TorchRun
from frenzy.evaluation.deepspeed_run import DeepSpeedRun

ModelledRun = TorchRun | DeepSpeedRun
# What is not recorded may make a prediction a range as wide as this share of its lower end.
WIDEST_RANGE: Final = 0.15
OWN_RUNS: Final = "own runs"


class Outcome(StrEnum):
    RAN = "ran"
    OUT_OF_MEMORY = "out of memory"


class Grade(StrEnum):
    """How much a measurement tells: A: peak of PyTorch's allocator, everything recorded. A-: the same,
    but lengths vary. B: peak or reserved memory, some setting not recorded. C: as the driver's tool
    shows it. D: only that it ran, or did not.
    """

    A = "A"
    A_MINUS = "A-"
    B = "B"
    C = "C"
    D = "D"


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of a data set.

    run: what was run; None when it cannot be predicted, and then ``refusal`` says why.
    peak_bytes: highest memory that tensors held. reserved_bytes: what the allocator or the driver
    showed as taken. group: rows that share a method, for learning. framework: what ran it. release: of
    transformers, and who says so; empty where the reader's format has one for all its rows. alternatives: what
    else may have run, where not all was recorded; ``run`` is the one that takes most. line: of the file, from 1.
    outcome_is_assumed: the run failed, and nobody recorded that memory was why.
    """

    dataset: str
    number: int
    label: str
    grade: Grade
    framework: str
    group: str
    outcome: Outcome
    capacity_bytes: int
    run: ModelledRun | None = None
    refusal: str = ""
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    release: str = ""
    alternatives: tuple[ModelledRun, ...] = ()
    line: int = 0
    outcome_is_assumed: bool = False


Cells = Mapping[str, str]


class UnknownRow(Exception):  # noqa: N818 - not an error: a row that is left out, with its reason
    """A row cannot be predicted; the message is the reason that is printed beside the data set."""
