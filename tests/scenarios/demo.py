"""``make demo``: the walk of ``frenzy demo`` beside a control run that is never interrupted, judged by all evidence."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Final

from tests.embedded_stack import Stack
from tests.scenarios.checks import judge
from tests.scenarios.control import ControlRun
from tests.scenarios.evidence import collect

from frenzy.adapters.spec.spec_file import checked_spec
from frenzy.cli.demo import DEFAULT_JOB, Outcome, api_of, run_demo, say, trained
from frenzy.cli.embedded.airflow_env import STACK_MARK
from frenzy.cli.render.error_text import guarded
from frenzy.core.runs.ledger import JobState
from frenzy.core.runs.protocol import RunView

_CONTROL_TIMEOUT_S: Final = 900.0


def walk(stack: Stack) -> Outcome:
    """Train the sample job; the control run starts when the first attempt's plan is known."""
    spec = checked_spec(DEFAULT_JOB)
    home = stack.settings.home
    control = ControlRun(home / "control", {**os.environ, STACK_MARK: str(home)})

    def seen(view: RunView) -> None:
        if view.attempts and not control.is_started:
            control.start(view.run.job, view.attempts[0].plan)

    try:
        with api_of(stack) as api:
            last = trained(api, spec, seen)
            view = last.views[0]
            result = None
            if view.run.state is JobState.SUCCEEDED:
                say("The run has ended; waiting for the control run ...")
                result = control.wait(_CONTROL_TIMEOUT_S)
            say("Checking the run ...")
            evidence = collect(api, view, f"{stack.settings.run_root}/{view.run.run_key}", control.losses(), result)
            return Outcome(view=view, checks=judge(evidence))
    finally:
        control.stop()


if __name__ == "__main__":
    sys.exit(guarded(partial(run_demo, walk, keep="--keep" in sys.argv[1:])))
