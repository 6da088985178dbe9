"""What is known of the run that a tracker of experiments made of a training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TRACKERS: Final = ("wandb", "mlflow", "tensorboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run as a tracker has it; kept in the run directory, so that the next attempt goes on with it.

    tracker_run: its own name of the run. place: where people see it, an address or a folder; empty until it is known.
    last_step: the newest step that it has. problem: why it does not get more.
    """

    kind: str
    tracker_run: str
    place: str = ""
    last_step: int = 0
    problem: str = ""
