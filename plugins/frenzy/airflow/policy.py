"""Airflow's cluster policy: a launch task that is cleared goes on counting the GPUs its run holds.

Found through the ``airflow.policy`` entry point. Airflow resets a task instance's pool to the
task's own whenever it is cleared; the ledger's lease says what it should be.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from airflow.policies import hookimpl

if TYPE_CHECKING:
    from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger

log = logging.getLogger(__name__)

_LAUNCH: Final = frozenset({"LaunchOperator", "PodLaunchOperator"})


@hookimpl
def task_instance_mutation_hook(task_instance: Any) -> None:
    """Called by scheduler and API server for every task instance: cheap for all but launch tasks."""
    if getattr(task_instance, "operator", None) not in _LAUNCH or not task_instance.run_id:
        return
    try:
        found = _ledger().launch_pool(
            task_instance.dag_id, task_instance.run_id, task_instance.task_id, task_instance.map_index
        )
    except Exception as error:  # whatever is wrong here, Airflow goes on: the ledger holds the GPUs anyway
        log.warning("The pool of %s could not be looked up: %s", task_instance.task_id, error)
        return
    if found is not None:
        task_instance.pool, task_instance.pool_slots = found


@cache
def _ledger() -> SqlLedger:
    from airflow.configuration import conf

    from frenzy.adapters.ledger_sql.sql_ledger import SqlLedger

    return SqlLedger.at(conf.get("database", "sql_alchemy_conn"))
