"""What the server says of itself: login, versions, components, clock, pools, DAGs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import Any, Final

from frenzy.adapters.airflow_calls import airflow_call
from frenzy.adapters.api_client import NotFoundError
from frenzy.api import endpoints
from frenzy.cli.commands.doctor.findings import Finding, checked, ok, problem, warning
from frenzy.cli.commands.server import Api
from frenzy.core.values.errors import PermanentError
from frenzy.core.values.units import counted

# A token of Airflow's is good for no longer than a few seconds before its time.
_MOST_SKEW_S: Final = 5.0
_RECONCILE: Final = "frenzy_reconcile"
_COMPONENTS: Final = ("metadatabase", "scheduler", "triggerer", "dag_processor")


def findings(api: Api) -> Iterator[Finding]:
    """Of everything that the server can be asked; only the first where it does not answer."""
    answers = tuple(checked("connection", lambda: connection(api), "See that Airflow's API server runs."))
    yield from answers
    if any(each.remedy for each in answers):
        return
    for look in (versions, components, pools, quotas, dags):
        yield from checked(look.__name__, partial(look, api), "Look at the API server's log.")


def connection(api: Api) -> Iterator[Finding]:
    """Whether the login is good, what it may do, and whether the clocks agree. Raises FrenzyError."""
    began_s = time.time()
    server_s = api.ask(endpoints.queue()).now_s
    skew_s = server_s - (began_s + time.time()) / 2
    rights = "an administrator" if _is_admin(api) else "a user or viewer"
    yield ok("connection", f"{api.base_url} as {api.login}, {rights}")
    yield _clock(skew_s, time.time() - began_s)


def _clock(skew_s: float, round_trip_s: float) -> Finding:
    if abs(skew_s) > _MOST_SKEW_S + round_trip_s:
        detail = f"The server's clock is {skew_s:+.0f} s from this machine's."
        return problem("clock", detail, "Let both follow NTP: tokens and leases end too early or too late.")
    return ok("clock", f"{skew_s:+.1f} s from the server's")


def _is_admin(api: Api) -> bool:
    try:
        api.ask(endpoints.queue_snapshot())
    except PermanentError:
        return False
    return True


def versions(api: Api) -> Iterator[Finding]:
    """Airflow's and this package's, there and here."""
    there = str(api.ask(airflow_call("GET", "/version"))["version"])
    ours = str(api.ask(endpoints.openapi())["info"]["version"])
    here = (metadata.version("apache-airflow-core"), metadata.version("frenzy-airflow"))
    if (there, ours) == here:
        yield ok("versions", f"Airflow {there}, Frenzy {ours}, here and there")
    else:
        detail = f"The server has Airflow {there} and Frenzy {ours}; here are {here[0]} and {here[1]}."
        yield warning("versions", detail, "Install the server's versions here, or upgrade the server.")


def components(api: Api) -> Iterator[Finding]:
    """Airflow's own account of what runs."""
    health: dict[str, Any] = api.ask(airflow_call("GET", "/monitor/health"))
    bad = [name for name in _COMPONENTS if (health.get(name) or {}).get("status") not in ("healthy", None)]
    if bad:
        remedy = "Start it again (here: frenzy up), and look at its log."
        yield problem("components", f"Not healthy: {', '.join(bad)}.", remedy)
    else:
        yield ok("components", ", ".join(name for name in _COMPONENTS if (health.get(name) or {}).get("status")))


def pools(api: Api) -> Iterator[Finding]:
    """Each GPU type's pool has as many slots as there are GPUs, and counts tasks that are deferred."""
    found = {each["name"]: each for each in api.ask(airflow_call("GET", "/pools?limit=1000"))["pools"]}
    wrong = []
    for row in api.ask(endpoints.gpus()).types:
        pool = found.get(row.pool)
        if pool is None:
            wrong.append(f"{row.pool} is missing")
        elif (pool["slots"], pool.get("include_deferred")) != (row.num_gpus, True):
            wrong.append(f"{row.pool} has {pool['slots']} slots for {row.num_gpus} GPUs")
    if wrong:
        remedy = f"Let the DAG {_RECONCILE} run, which mends them."
        yield warning("pools", f"{'; '.join(wrong)}.", remedy)
    else:
        yield ok("pools", ", ".join(each.pool for each in api.ask(endpoints.gpus()).types) or "no GPU type, no pool")


def quotas(api: Api) -> Iterator[Finding]:
    """Whether the cluster has the GPU types that quotas name."""
    rows = api.ask(endpoints.queue()).quotas
    idle = [f"{each.gpu_type} of {each.holder} {each.name}" for each in rows if each.limits_nothing]
    if idle:
        known = ", ".join(each.gpu_type for each in api.ask(endpoints.gpus()).types)
        detail = f"These quotas limit nothing, for the cluster has no such GPU type: {', '.join(idle)}; it has {known}."
        yield warning("quotas", detail, "Correct max_gpus_by_type in the server's queue file.")
    elif rows:
        yield ok("quotas", f"{counted(len(rows), 'quota')}, each of a GPU type that is there or of all types")


def dags(api: Api) -> Iterator[Finding]:
    """DAG files that do not import, and the DAG that frees what nobody else does."""
    errors = api.ask(airflow_call("GET", "/importErrors?limit=20")).get("import_errors", [])
    for each in errors:
        last = (str(each["stack_trace"]).strip().splitlines() or ["no message"])[-1]
        yield problem("dags", f"{each['filename']} does not import: {last}", "Correct the file.")
    yield from _reconcile(api)


def _reconcile(api: Api) -> Iterator[Finding]:
    try:
        dag = api.ask(airflow_call("GET", f"/dags/{_RECONCILE}"))
    except NotFoundError:
        remedy = "Put dags/frenzy_reconcile.py (frenzy init writes it) into Airflow's DAGs folder."
        yield problem("dags", f"There is no DAG {_RECONCILE}: nothing frees the GPUs of lost workers.", remedy)
        return
    if dag.get("is_paused"):
        yield problem("dags", f"The DAG {_RECONCILE} is paused.", "Unpause it in Airflow.")
        return
    newest = api.ask(airflow_call("GET", f"/dags/{_RECONCILE}/dagRuns?limit=1&order_by=-run_after"))["dag_runs"]
    if newest and newest[0]["state"] == "failed":
        remedy = "Look at its log: the Connection frenzy_default must name this server, with a user who may use it."
        yield problem("dags", f"The newest run of {_RECONCILE} failed.", remedy)
    else:
        yield ok("dags", f"no import errors, {_RECONCILE} runs" if newest else f"{_RECONCILE} is about to run first")
