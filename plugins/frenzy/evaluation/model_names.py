"""Names of models in tables, as their owners publish them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from frenzy.evaluation.settings_of_runs import published_models

# Repackaged weights and tuned versions have the shape of what they are made from.
_PREFIXES: Final = ("meta-",)
_SUFFIXES: Final = re.compile(r"-(gptq|awq|bnb-4bit|hf|instruct|chat|base|fp16|bf16)$")


def published_name(name: str) -> str:
    """The name under which the configuration is kept; ``name`` itself where it is a folder, else its last part."""
    if Path(name, "config.json").is_file():
        return name
    last = name.rstrip("/").rsplit("/", 1)[-1]
    plain = {_bare(each): each for each in published_models()}
    exact = {each.lower(): each for each in published_models()}
    return exact.get(last.lower()) or plain.get(_bare(last)) or last


def _bare(name: str) -> str:
    found = name.lower()
    for prefix in _PREFIXES:
        found = found.removeprefix(prefix)
    while _SUFFIXES.search(found):
        found = _SUFFIXES.sub("", found)
    return found
