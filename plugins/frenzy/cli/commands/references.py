"""What a person calls a run: its key, its job's name, its DAG, or its DAG run's id."""

from __future__ import annotations

from typing import Final

from frenzy.adapters.api_client import NotFoundError
from frenzy.api import endpoints
from frenzy.cli.commands.server import Api
from frenzy.core.runs.protocol import RunView
from frenzy.core.values.errors import PermanentError, Reason, ReasonCode

_SEARCHED: Final = 1000


def find_run(api: Api, reference: str) -> RunView:
    """The run with that key, else the newest whose job, DAG or DAG run has that name.

    Raises PermanentError naming the runs there are.
    """
    if reference.strip():
        try:
            return api.ask(endpoints.run_view(reference))
        except NotFoundError:
            pass
    known = api.ask(endpoints.runs(_SEARCHED))
    for view in known:
        if reference in (view.run.job.name, view.run.identity.dag_id, view.run.identity.run_id):
            return api.ask(endpoints.run_view(view.run.run_key))
    names = ", ".join(dict.fromkeys(view.run.job.name for view in known)) or "none yet"
    raise PermanentError(
        Reason(
            code=ReasonCode.BAD_CONFIG_OR_DATA,
            detail=f"No training run or job is called {reference!r}.",
            remedy=f"Jobs with runs: {names}. See: frenzy status",
        )
    )
