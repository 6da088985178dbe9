"""The run directory and the launcher as tasks and triggers use them: made once in each process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from frenzy.ports import Launcher, RunStore
from frenzy.settings import Settings, load_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What reaches workers: their run directory, and the launcher that starts and stops them."""

    settings: Settings
    runs: RunStore
    launcher: Launcher


@cache
def workers() -> Workers:
    """Those of this installation's settings."""
    from frenzy import wiring

    settings = load_settings(os.environ)
    return Workers(settings=settings, runs=wiring.run_store(settings), launcher=wiring.launcher(settings))
