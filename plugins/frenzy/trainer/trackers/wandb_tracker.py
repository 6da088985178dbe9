"""Weights & Biases: a server, or its files in the run directory for ``wandb sync``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from frenzy.core.runs.tracked_run import TrackedRun
from frenzy.trainer.trackers.tracker import Ending, Point, TrackedAttempt


class WandbTracker:
    """W&B itself takes no step twice where it can ask its server; it sends from a process of its own."""

    def __init__(self, attempt: TrackedAttempt) -> None:
        self._attempt = attempt
        self._run: Any = None

    def open(self, known: TrackedRun, *, first_step: int) -> TrackedRun:
        for name in ("CACHE", "CONFIG", "DATA"):
            os.environ.setdefault(f"WANDB_{name}_DIR", str(self._attempt.scratch / "wandb-home"))
        import wandb

        attempt, is_offline = self._attempt, self._attempt.is_offline
        entity, _, project = attempt.project.rpartition("/")
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            id=known.tracker_run,
            name=attempt.name,
            resume=None if is_offline else "allow",
            mode=attempt.tracker.mode,
            dir=str(attempt.folder),
            config={**attempt.settings(), "frenzy": attempt.facts()},
            allow_val_change=True,
            settings=wandb.Settings(
                base_url=attempt.tracker.uri or "https://api.wandb.ai",
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
            ),
        )
        return replace(known, place=attempt.place if is_offline else str(self._run.url))

    def log(self, points: Sequence[Point]) -> None:
        for each in points:
            self._run.log(dict(each.values), step=each.step)

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=int(ending in (Ending.FAILED, Ending.CANCELLED)))
