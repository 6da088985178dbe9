"""``frenzy marp``: the memory predictor by itself. A group of verbs; each has a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from frenzy.cli.commands.marp.evaluate_file import evaluate
from frenzy.cli.commands.marp.measure import measure
from frenzy.cli.commands.marp.trace import trace

HELP: Final = "Trace, measure and evaluate the memory of a training step."
VERBS: Final[tuple[Callable[..., int], ...]] = (trace, measure, evaluate)
