"""What the validations of a run have found, and what follows from it: a part of the training's state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from frenzy.core.values.job import ValidationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSoFar:
    """The lowest validation loss, the step it was measured after, and the validations since. None before the first.

    is_owed: a stop came before the validation that was due; whoever goes on begins with it.
    """

    loss: float | None = None
    step: int = 0
    num_since: int = 0
    is_owed: bool = False

    def after(self, asked: ValidationSpec, *, step: int, loss: float) -> BestSoFar:
        """With the validation after ``step``. What is no finite number is never the lowest."""
        if math.isfinite(loss) and (self.loss is None or loss < self.loss - asked.min_improvement):
            return BestSoFar(loss=loss, step=step)
        return replace(self, num_since=self.num_since + 1, is_owed=False)

    def owes(self, asked: ValidationSpec) -> bool:
        """Whether a validation comes first; not where the job asks for none any more, and holds no text out."""
        return self.is_owed and asked.every_steps is not None

    def ends_training(self, asked: ValidationSpec) -> bool:
        """Whether the loss has not fallen for as many validations as the job has patience for."""
        return asked.patience is not None and self.num_since >= asked.patience

    def why_no_further(self) -> str:
        """What the validations found, as the reason of an early end."""
        if self.loss is None:
            return f"none of {self.num_since} validations gave a finite loss."
        found = f"the validation loss was {self.loss:.4f} after step {self.step}"
        return f"{found} and lower in none of {self.num_since} validations since."


def is_due(asked: ValidationSpec, *, step: int, total_steps: int) -> bool:
    """Whether a validation follows ``step``: the last one always has one."""
    return asked.every_steps is not None and (step % asked.every_steps == 0 or step == total_steps)
