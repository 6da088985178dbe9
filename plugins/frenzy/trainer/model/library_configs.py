"""A model's config as an object of the Hugging Face library, from its fields as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# How the library writes a number that JSON lacks, such as an infinite bound: {"__float__": "Infinity"}.
_FLOAT: Final = "__float__"


def config_of(fields: Mapping[str, Any]) -> Any:
    """The config of ``fields``, ``model_type`` among them. Raises whatever the library says of wrong ones."""
    from transformers import AutoConfig

    options = {name: _with_floats(value) for name, value in fields.items()}
    return AutoConfig.for_model(str(options.pop("model_type", "")), **options)


def field_names(config: Any) -> list[str]:
    """What the class of ``config`` knows, other names of its fields among it; nothing where no default tells."""
    try:
        default = type(config)()
        return sorted({*default.to_dict(), *default.attribute_map})
    except Exception:  # a class that cannot be made of nothing: then nobody knows
        return []


def _with_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {_FLOAT}:
            return float(value[_FLOAT])
        return {name: _with_floats(each) for name, each in value.items()}
    return [_with_floats(each) for each in value] if isinstance(value, list) else value
