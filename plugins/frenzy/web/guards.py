"""Who may call an endpoint.

Airflow does not guard the apps that plugins mount, so each endpoint names a ``Need``, and ``guard`` makes it a FastAPI
dependency. What a caller may do to DAGs is asked of Airflow's auth manager, for the DAG of the very run that the path
names, never for one that the query names; whose jobs and runs are is asked of the ledger (``frenzy.core.runs.access``).
A caller without a valid token or session cookie gets 401, one who may not 403.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, Protocol

from fastapi import Depends, Request

from frenzy.api.declaration import Need
from frenzy.app.services import require_run
from frenzy.app.stored_jobs import require_managed
from frenzy.core.runs.access import Caller, Forbidden, may_manage
from frenzy.core.runs.ledger import RunRecord
from frenzy.web.messages import services_of

Dependency = Callable[..., Any]


class Action(StrEnum):
    """What Airflow's auth manager is asked about a DAG."""

    SEE_RUNS = "see runs"
    SEE_LOGS = "see logs"
    START_RUNS = "start runs"
    CHANGE_RUNS = "change runs"


class Person(Protocol):
    """Who calls, as the auth manager knows them."""

    @property
    def caller(self) -> Caller: ...

    def may_visit(self) -> bool:
        """Whether they may use Airflow's pages at all."""
        ...

    def may(self, action: Action, dag_id: str | None = None) -> bool:
        """Whether they may do that to the DAG; None: to any."""
        ...

    def sees(self, dag_ids: Iterable[str]) -> frozenset[str]:
        """Those of the DAGs whose runs they may see."""
        ...


def person_of(request: Request) -> Person:
    """Who calls; the guard has found out."""
    person: Person = request.state.frenzy_person
    return person


def guard(need: Need, person: Dependency) -> Dependency:
    """A dependency that lets through who has what ``need`` says. person: a dependency that yields a ``Person``."""
    allows = _CHECKS[need]

    def check(request: Request, who: Any = Depends(person)) -> None:  # noqa: B008  # FastAPI's form
        request.state.frenzy_person, request.state.frenzy_need = who, need
        if _is_of_another_site(request):
            raise Forbidden("A page of another site asks for this.", "Open Airflow's own page.")
        if not allows(who, request):
            raise Forbidden("You may not do this.", _REMEDIES.get(need, _BY_ROLE))

    return check


def _is_of_another_site(request: Request) -> bool:
    """A page of another site may make a browser send its user's cookie; the browser says that it did."""
    if request.method == "GET" or "authorization" in request.headers:
        return False
    return request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def _run(request: Request) -> RunRecord:
    with services_of(request).ledger.reading() as tx:
        return require_run(tx, request.path_params["run_key"])


def _may_to_run(action: Action) -> Callable[[Person, Request], bool]:
    def check(who: Person, request: Request) -> bool:
        return who.caller.is_service or who.may(action, _run(request).identity.dag_id)

    return check


def _manages_run(action: Action) -> Callable[[Person, Request], bool]:
    def check(who: Person, request: Request) -> bool:
        run, services = _run(request), services_of(request)
        if not (who.caller.is_service or who.may(action, run.identity.dag_id)):
            return False
        if not may_manage(who.caller, owner=run.owner, team=run.job.team, rules=services.queues.rules()):
            raise Forbidden.anothers(f"The run {run.run_key} of {run.job.name} is another's.", run.owner, run.job.team)
        return True

    return check


def _manages_job(who: Person, request: Request) -> bool:
    if not (who.caller.is_service or who.may(Action.START_RUNS)):
        return False
    require_managed(services_of(request), request.path_params["name"], who.caller)
    return True


_CHECKS: Final[dict[Need, Callable[[Person, Request], bool]]] = {
    Need.VISIT: lambda who, request: who.may_visit(),
    Need.SEE_RUN: _may_to_run(Action.SEE_RUNS),
    Need.SEE_LOGS: _manages_run(Action.SEE_LOGS),
    Need.TAKE_MODEL: _manages_run(Action.SEE_RUNS),
    Need.SEE_DAG_RUN: lambda who, request: (
        who.caller.is_service or who.may(Action.SEE_RUNS, request.path_params["dag_id"])
    ),
    Need.MANAGE_RUN: _manages_run(Action.CHANGE_RUNS),
    Need.MANAGE_JOB: _manages_job,
    Need.START: lambda who, request: who.caller.is_service or who.may(Action.START_RUNS),
    Need.ADMIN: lambda who, request: who.caller.is_admin,
    Need.SERVICE: lambda who, request: who.caller.is_service,
}
_BY_ROLE: Final = "Ask an administrator for a role that may do this in Airflow."
_REMEDIES: Final = {
    Need.ADMIN: "This is for administrators: those who may change Airflow's Connections.",
    Need.SERVICE: "This is for Frenzy's own tasks, who log in by the Connection frenzy_default.",
}
