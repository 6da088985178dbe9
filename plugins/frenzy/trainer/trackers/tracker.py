"""The port of a tracker, and what all of them are told of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from frenzy.core.runs.masking import masked_at
from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.job import TrackerSpec
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.telemetry import StepRecord
from frenzy.trainer import files


class Ending(StrEnum):
    """How the attempt ended, as trackers tell it."""

    DONE = "done"
    GOES_ON = "goes on"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @staticmethod
    def of(exit_code: int, asked: Reason | None = None) -> Ending:
        """asked: why the workers were asked to stop, if they were."""
        if exit_code == ExitCode.DONE:
            return Ending.DONE
        if asked is not None and asked.code is ReasonCode.CANCELLED_BY_USER:
            return Ending.CANCELLED
        return Ending.GOES_ON if exit_code == ExitCode.CHECKPOINTED else Ending.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What the curves are at a step."""

    step: int
    time_s: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """One attempt's part of a tracked run. What cannot be done raises; whoever calls it goes on and tries again."""

    def open(self, known: TrackedRun, *, first_step: int) -> TrackedRun:
        """Begin the run, or go on with the one that is ``known`` if its place is; what is known of it now."""
        ...

    def log(self, points: Sequence[Point]) -> None: ...
    def close(self, ending: Ending) -> None: ...


@dataclass(frozen=True, slots=True)
class TrackedAttempt:
    """What a tracker is told of the attempt, and a folder of its own for its files."""

    spec: LaunchSpec
    tracker: TrackerSpec
    scratch: Path

    @property
    def project(self) -> str:
        return self.tracker.project or "frenzy"

    @property
    def name(self) -> str:
        """Of the run, for people."""
        return f"{self.spec.job.name}-{self.spec.run_key}"

    @property
    def is_offline(self) -> bool:
        return self.tracker.mode == "offline" or self.tracker.kind == "tensorboard"

    @property
    def place(self) -> str:
        """Where its files lie in the run directory."""
        return f"{RunPaths(self.spec.run_dir).tracking_dir}/{self.tracker.kind}"

    @property
    def folder(self) -> Path:
        """The same as a folder of this machine: itself, or one that ``keep_files`` copies there."""
        local = files.local_path(self.place)
        found = local.absolute() if local is not None else self.scratch / self.tracker.kind
        found.mkdir(parents=True, exist_ok=True)
        return found

    def bring_files(self) -> None:
        """What earlier attempts left, into ``folder``."""
        if files.local_path(self.place) is None:
            files.fetch_folder(self.place, self.folder)

    def keep_files(self) -> None:
        if files.local_path(self.place) is None:
            files.publish_folder(self.folder, self.place)

    def facts(self) -> dict[str, str]:
        """By what the run is found again."""
        spec = self.spec
        return {
            "frenzy.run_key": spec.run_key,
            "frenzy.job": spec.job.name,
            "frenzy.team": spec.job.team,
            "frenzy.attempt": str(spec.attempt),
            "frenzy.plan": spec.plan.plan_id,
        }

    def settings(self) -> dict[str, Any]:
        """What tells the run from others: no variables, no secrets, no texts that are hidden."""
        job = masked_at(self.spec.job, self.spec.masked)
        return {name: codec.encode(getattr(job, name)) for name in ("model", "data", "training")}


def flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Each setting by the path of its field, as text."""
    for name, value in settings.items():
        place = f"{path}.{name}".removeprefix(".")
        if isinstance(value, Mapping):
            yield from flat(value, place)
        elif value not in (None, "", [], ()):
            yield place, str(value)


def point_of(record: StepRecord, num_gpus: int) -> Point:
    """What a step of rank 0 adds to the curves; what is no finite number is left out."""
    known = {
        "train/loss": record.loss,
        "train/learning_rate": record.learning_rate,
        "train/grad_norm": record.grad_norm,
        "train/step_time_s": record.step_time_s,
        "train/tokens_per_s": record.tokens_per_s * num_gpus,
        "validation/loss": record.validation_loss,
        "memory/peak_bytes": float(record.peaks.allocated_bytes),
    }
    values = {name: value for name, value in known.items() if value is not None and math.isfinite(value)}
    return Point(step=record.step, time_s=record.time_s, values=values)
