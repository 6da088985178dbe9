"""The complete Hugging Face config of a model: what the memory model reads.

Defaults are filled in by transformers itself, so that planner and trainer see the same model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from frenzy.core.errors import PermanentError, Reason, ReasonCode, SpecError, Violation
from frenzy.core.job import ModelSpec

_CONFIG_FILE: Final = "config.json"


def resolve_model_config(model: ModelSpec) -> dict[str, Any]:
    """``model``'s config with every default, as plain JSON types.

    Raises SpecError when the spec's config or folder is refused, PermanentError when a hub id
    cannot be read.
    """
    if model.config is not None:
        return _complete(dict(model.config), "model.config")
    if model.path is not None:
        return _complete(_read_folder(model.path), "model.path")
    return _from_hub(model.hub_id or "")


def _complete(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    # transformers takes a second to import: only where a model is really looked at.
    from transformers import AutoConfig

    options = dict(given)
    family = str(options.pop("model_type", ""))
    try:
        config = AutoConfig.for_model(family, **options)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecError([Violation(path=path, value=_shown(given), allowed=_one_line(error))]) from error
    return _plain(config)


def _read_folder(folder: str) -> dict[str, Any]:
    import fsspec

    place = f"{folder.rstrip('/')}/{_CONFIG_FILE}"
    try:
        with fsspec.open(place, "rt", encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        allowed = f"give a folder with a {_CONFIG_FILE} that can be read ({_one_line(error)})"
        raise SpecError([Violation(path="model.path", value=repr(folder), allowed=allowed)]) from error
    if not isinstance(document, dict) or "model_type" not in document:
        allowed = f"its {_CONFIG_FILE} must be an object that names its model_type"
        raise SpecError([Violation(path="model.path", value=repr(folder), allowed=allowed)])
    return document


def _from_hub(hub_id: str) -> dict[str, Any]:
    from transformers import AutoConfig

    try:
        return _plain(AutoConfig.from_pretrained(hub_id))
    except (OSError, ValueError) as error:
        raise PermanentError(
            Reason(
                code=ReasonCode.BAD_CONFIG_OR_DATA,
                detail=f"model.hub_id {hub_id!r} cannot be read: {_one_line(error)}",
                remedy="Check the id and that the hub can be reached, or give model.path or model.config.",
            )
        ) from error


def _plain(config: Any) -> dict[str, Any]:
    """The text model's config as JSON types."""
    text = config.get_text_config()
    document: dict[str, Any] = json.loads(text.to_json_string(use_diff=False))
    return document


def _shown(given: Mapping[str, Any]) -> str:
    text = json.dumps(given, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
