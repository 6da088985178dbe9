"""The config of a model with what is measured of it, where its family has no closed form of its own.

The model's own class is made and run on tensors without data, in a process of its own; never with code from where
the config came from. What was found is kept in a folder, for the libraries' releases.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from frenzy.adapters.library_process import Told
from frenzy.adapters.model_config import ask_patiently, keep, known, resolve_model, turn
from frenzy.core.memory.model_trace import MODEL_TRACE, ModelTrace
from frenzy.core.models.module_tree import MODULE_TREE, TREE_PROBLEM
from frenzy.core.models.shape import SUPPORTED_FAMILIES
from frenzy.core.values.codec import encode
from frenzy.core.values.job import ModelSpec, TrainingSpec

_TRACE_TIMEOUT_S: Final = 300.0
# Traces on one machine: in tasks and API servers that share a folder for what is kept.
_MOST_AT_ONCE: Final = 2
# Of what is kept: another number where a trace finds something else in the same model.
_FORMAT: Final = 3
_EAGER: Final = "eager"
# So transformers begins the list of all classes when it has none for a family.
_BEFORE_CLASSES: Final = "Model type should be one of "


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
    """Parameters and trace, or why there are none."""
    kept = None if cache_folder is None else cache_folder / f"trace-{_digest(asked)}.json"
    with turn(kept):
        return known(kept) or _traced(asked, kept, told)


def _traced(asked: Mapping[str, Any], kept: Path | None, told: Told | None) -> dict[str, Any]:
    listed = ask_patiently("from frenzy.trainer.model.list_modules import main; main()", asked["config"], kept)
    if MODULE_TREE not in listed:
        return {TREE_PROBLEM: listed["error"].partition(_BEFORE_CLASSES)[0].rstrip(". \n")}
    with place_to_trace(kept):
        trace = ask_patiently(
            "from frenzy.trainer.trace.one_model import main; main()",
            {**asked, MODULE_TREE: listed[MODULE_TREE]},
            kept,
            timeout_s=_TRACE_TIMEOUT_S,
            told=told,
        )
    if "error" in trace:
        trace = encode(ModelTrace(problem=trace["error"]))
    found = {MODULE_TREE: listed[MODULE_TREE], MODEL_TRACE: trace}
    if kept is not None and trace["problem"] is None:
        keep(kept, found)
    return found


@contextmanager
def place_to_trace(kept: Path | None) -> Iterator[None]:
    """One of the few traces that a machine makes at a time: each may hold gigabytes. Whoever comes later waits."""
    with ExitStack() as stack:
        with suppress(OSError):
            if kept is not None:
                number = os.getpid() % _MOST_AT_ONCE
                place = stack.enter_context(kept.with_name(f"tracing-{number}.lock").open("w"))
                fcntl.flock(place, fcntl.LOCK_EX)
        yield


def _digest(asked: Mapping[str, Any]) -> str:
    releases = [version(name) for name in ("torch", "transformers")]
    text = json.dumps([_FORMAT, releases, asked], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
