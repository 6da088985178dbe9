"""The finished model as an Airflow Asset: ``frenzy://models/<job name>``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from frenzy.core.runs.protocol import RunView

if TYPE_CHECKING:  # DAG files import this module, and the views are many
    from frenzy.core.runs.views import MemoryView
    from frenzy.core.values.telemetry import StepPeak

MODELS_ALIAS: Final = "frenzy_models"
# Its perplexity is still a number that JSON has.
_MOST_LOSS: Final = 700.0


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


def model_facts(view: RunView, memory: MemoryView | None, path: str) -> dict[str, Any]:
    """What the event says of the model in the folder ``path``; small JSON.

    memory: the run's curves, where it validated.
    """
    run, validated = view.run, None if memory is None else validation_loss(view, memory)
    last = view.attempts[-1] if view.attempts else None
    return {
        "run_key": run.run_key,
        "job": run.job.name,
        "path": path,
        "steps": None if last is None else last.last_step,
        "loss": None if last is None else last.last_loss,
        "validation_loss": validated,
        "perplexity": None if validated is None else math.exp(validated),
        "data_digest": None if run.prepared is None else run.prepared.digest,
        "plan": None if last is None else last.plan.plan_id,
        "attempts": len(view.attempts),
        "reschedules": run.num_reschedules,
    }


def validation_loss(view: RunView, memory: MemoryView) -> float | None:
    """Of the model that the run left, as its curves show it: the best one's where it left that, else the last step's.

    None where that is no number: training ends with a validation, so that a last step without one has diverged.
    """
    from frenzy.trainer.best_so_far import BestSoFar

    asked, steps = view.run.job.validation, _steps_to_model(memory)
    loss = steps[-1].validation_loss if steps else None
    if asked.final_model == "best":
        best = BestSoFar()
        for each in steps:
            if each.validation_loss is not None:
                best = best.after(asked, step=each.step, loss=each.validation_loss)
        loss = best.loss
    return None if loss is None or not loss < _MOST_LOSS else loss


def _steps_to_model(memory: MemoryView) -> list[StepPeak]:
    """The steps that the model comes from: those after a checkpoint that an attempt went on from are lost."""
    found: list[StepPeak] = []
    for attempt in memory.attempts:
        first = attempt.steps[0].step if attempt.steps else math.inf
        found = [*(each for each in found if each.step < first), *attempt.steps]
    return found


def emit(outlet_events: Any, outlets: Iterable[Any], name: str, facts: dict[str, Any]) -> None:
    """Attach ``facts`` to the event of each outlet."""
    from airflow.sdk import AssetAlias

    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            outlet_events[outlet].add(model_asset(name), extra=facts)
        else:
            outlet_events[outlet].extra = facts
