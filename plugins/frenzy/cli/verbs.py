"""The verbs of ``frenzy``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Modules below frenzy.cli by verb: a call imports that of its own verb only.
VERBS: Final[Mapping[str, str]] = {
    "submit": "commands.submit",
    "sweep": "commands.sweep",
    "jobs": "commands.jobs",
    "plan": "commands.plan.command",
    "status": "commands.status",
    "logs": "commands.logs",
    "models": "commands.outputs",
    "checkpoints": "commands.outputs",
    "cancel": "commands.cancel",
    "resume": "commands.again",
    "retry": "commands.again",
    "clean": "commands.clean",
    "queue": "commands.queue",
    "gpus": "commands.gpus",
    "explain": "commands.explain",
    "usage": "commands.usage",
    "metrics": "commands.metrics",
    "simulate": "commands.simulate.command",
    "init": "commands.init",
    "up": "commands.up",
    "down": "commands.down",
    "doctor": "commands.doctor.command",
    "demo": "demo",
}
GROUP: Final = "marp"
