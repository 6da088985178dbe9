"""Which training run a task belongs to."""

from __future__ import annotations

from typing import Any

from frenzy.core.runs.ledger import RunIdentity


def identity_of(task_instance: Any, task_group: str | None = None) -> RunIdentity:
    """The identity behind ``task_instance``: its DAG run, its innermost task group and its map index.

    task_group: another group of the same DAG run, for a task outside it.
    """
    own_group = str(task_instance.task_id).rpartition(".")[0]
    map_index = task_instance.map_index
    return RunIdentity(
        dag_id=task_instance.dag_id,
        run_id=task_instance.run_id,
        task_group=own_group if task_group is None else task_group,
        map_index=-1 if map_index is None else map_index,
    )
