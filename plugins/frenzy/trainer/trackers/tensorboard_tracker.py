"""TensorBoard's event files, in one folder of the run directory for all attempts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.trainer.trackers.tracker import Ending, Point, TrackedAttempt


class TensorboardTracker:
    """An attempt's file tells readers to forget what earlier files have of the same steps."""

    def __init__(self, attempt: TrackedAttempt) -> None:
        self._attempt = attempt
        self._writer: Any = None

    def open(self, known: TrackedRun, *, first_step: int) -> TrackedRun:
        from torch.utils.tensorboard import SummaryWriter

        attempt = self._attempt
        self._writer = SummaryWriter(str(attempt.folder), purge_step=first_step)
        if not known.place:
            said = json.dumps({**attempt.settings(), "frenzy": attempt.facts()}, indent=2)
            self._writer.add_text("frenzy", "\n".join(f"    {line}" for line in said.splitlines()), first_step)
        return replace(known, place=attempt.place, last_step=first_step - 1)

    def log(self, points: Sequence[Point]) -> None:
        for each in points:
            for name, value in each.values.items():
                self._writer.add_scalar(name, value, each.step, walltime=each.time_s)
        self._writer.flush()

    def close(self, ending: Ending) -> None:
        self._writer.close()
