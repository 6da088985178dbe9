"""Manifests as YAML that every reader takes for the same: kubectl's follows neither YAML 1.1 nor 1.2 alone.

A run key such as ``123e4567`` is a number to one of them and text to another; a team called ``no``
is false to a third. Text that any of them could take for something else is put in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

_PLAIN: Final = re.compile(r"/?[A-Za-z][A-Za-z0-9 ._/-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and not text.endswith(" ") and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def manifest_yaml(manifests: Iterable[Mapping[str, Any]]) -> str:
    """One YAML document for each of ``manifests``, in their order, as ``kubectl apply -f -`` reads them."""
    return "---\n".join(
        yaml.dump(dict(each), Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=10**6) for each in manifests
    )
