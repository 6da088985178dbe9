"""The finished model as an Airflow Asset: ``frenzy://models/<job name>``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from frenzy.core.runs.protocol import RunView
from frenzy.core.values.launch import RunPaths

MODELS_ALIAS: Final = "frenzy_models"


def model_uri(name: str) -> str:
    return f"frenzy://models/{name}"


def model_outlets(name: str | None) -> list[Any]:
    """What the publish task declares: the Asset, or an alias where the name is known only at run time."""
    from airflow.sdk import AssetAlias

    return [AssetAlias(MODELS_ALIAS)] if name is None else [model_asset(name)]


def model_asset(name: str) -> Any:
    """The Asset of the job called ``name``; put it in another DAG's schedule."""
    from airflow.sdk import Asset

    return Asset(name=model_uri(name), uri=model_uri(name), group="frenzy")


def model_facts(view: RunView) -> dict[str, Any]:
    """What the event says of the model; small JSON."""
    from frenzy.airflow.tasks.workers import workers

    run = view.run
    last = view.attempts[-1] if view.attempts else None
    return {
        "run_key": run.run_key,
        "job": run.job.name,
        "path": RunPaths(workers().runs.run_dir(run.run_key)).model_dir,
        "steps": None if last is None else last.last_step,
        "loss": None if last is None else last.last_loss,
        "plan": None if last is None else last.plan.plan_id,
        "attempts": len(view.attempts),
        "reschedules": run.num_reschedules,
    }


def emit(outlet_events: Any, outlets: Iterable[Any], name: str, facts: dict[str, Any]) -> None:
    """Attach ``facts`` to the event of each outlet."""
    from airflow.sdk import AssetAlias

    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            outlet_events[outlet].add(model_asset(name), extra=facts)
        else:
            outlet_events[outlet].extra = facts
