"""A user's callback as it might stand beside a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from frenzy.trainer.callbacks import Callback, StepContext


class Diary(Callback):
    """Writes every event to a file, and counts steps across resumes."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._count = 0

    def on_train_begin(self, context: StepContext, model: torch.nn.Module) -> None:
        self._write(context, f"begin at {context.step} with {self._count} counted")

    def on_step_end(self, context: StepContext, model: torch.nn.Module) -> None:
        self._count += 1
        self._write(context, f"step {context.step} of {context.total_steps}")

    def on_checkpoint(self, context: StepContext, model: torch.nn.Module) -> None:
        self._write(context, f"checkpoint {context.step}")

    def on_train_end(self, context: StepContext, model: torch.nn.Module) -> None:
        self._write(context, f"end at {context.step}")

    def state_dict(self) -> Mapping[str, Any]:
        return {"count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._count = int(state["count"])

    def _write(self, context: StepContext, line: str) -> None:
        with (self._folder / f"rank-{context.rank}.txt").open("a") as file:
            file.write(f"{line}\n")
