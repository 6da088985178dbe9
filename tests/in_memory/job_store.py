"""The jobs folder in memory."""

from __future__ import annotations

from collections.abc import Sequence


class InMemoryJobStore:
    """JobStore of one process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def put(self, name: str, yaml_text: str) -> bool:
        changed = self._texts.get(name) != yaml_text
        self._texts[name] = yaml_text
        return changed

    def get(self, name: str) -> str | None:
        return self._texts.get(name)

    def names(self) -> Sequence[str]:
        return sorted(self._texts)

    def remove(self, name: str) -> bool:
        return self._texts.pop(name, None) is not None
