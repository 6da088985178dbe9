"""The config of a model with what is measured of it, where its family has no closed form of its own.

The model's own class is made and run on tensors without data, in a process of its own; never with code from where
the config came from. What was found is kept in a folder, for the libraries' releases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.library_process import Told, ask
from frenzy.adapters.model_config import keep, known, resolve_model, turn
from frenzy.core.memory.model_trace import MODEL_TRACE, ModelTrace
from frenzy.core.models.module_tree import MODULE_TREE
from frenzy.core.models.shape import SUPPORTED_FAMILIES
from frenzy.core.values.codec import encode
from frenzy.core.values.job import ModelSpec, TrainingSpec

_TRACE_TIMEOUT_S: Final = 300.0
# Of what is kept: another number where a trace finds something else in the same model.
_FORMAT: Final = 2
_EAGER: Final = "eager"


def planned_config(
    model: ModelSpec, training: TrainingSpec, *, cache_folder: Path | None = None, told: Told | None = None
) -> tuple[ModelSpec, dict[str, Any]]:
    """``model`` with its commit, and its complete config with all that planning needs.

    told: called with how many parts of a trace are done, and of how many. Raises as ``resolve_model``, and
    TemporaryError where a trace took too long.
    """
    model, config = resolve_model(model, cache_folder=cache_folder)
    if str(config.get("model_type", "")) in SUPPORTED_FAMILIES:
        return model, config
    asked = {
        "config": config,
        "precision": str(training.precision),
        "attentions": [_EAGER if training.attention == _EAGER else "sdpa"],
    }
    return model, {**config, **_measured(asked, cache_folder, told)}


def _measured(asked: Mapping[str, Any], cache_folder: Path | None, told: Told | None) -> dict[str, Any]:
    """Parameters and trace; the former alone, or nothing, where the model cannot be built here."""
    kept = None if cache_folder is None else cache_folder / f"trace-{_digest(asked)}.json"
    with turn(kept):
        return known(kept) or _traced(asked, kept, told)


def _traced(asked: Mapping[str, Any], kept: Path | None, told: Told | None) -> dict[str, Any]:
    options = dict(asked["config"])
    question = {"family": str(options.pop("model_type", "")), "options": options}
    listed = ask("from frenzy.trainer.model.list_modules import main; main()", question)
    if MODULE_TREE not in listed:
        return {}
    trace = ask(
        "from frenzy.trainer.trace.one_model import main; main()",
        {**asked, MODULE_TREE: listed[MODULE_TREE]},
        timeout_s=_TRACE_TIMEOUT_S,
        told=told,
    )
    if "error" in trace:
        trace = encode(ModelTrace(problem=trace["error"]))
    found = {MODULE_TREE: listed[MODULE_TREE], MODEL_TRACE: trace}
    if kept is not None and trace["problem"] is None:
        keep(kept, found)
    return found


def _digest(asked: Mapping[str, Any]) -> str:
    releases = [version(name) for name in ("torch", "transformers")]
    text = json.dumps([_FORMAT, releases, asked], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
