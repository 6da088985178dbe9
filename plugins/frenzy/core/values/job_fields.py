"""What the parts of a specification have in common: help for a field, and that unknown keys are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Doc:
    """Help for one field: a sentence, and values worth suggesting in the form."""

    text: str
    examples: tuple[Any, ...] = ()
    pattern: str | None = None

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """The field's JSON schema with its help."""
        help_ = {"description": self.text, "examples": list(self.examples), "pattern": self.pattern}
        return handler(core_schema) | {key: each for key, each in help_.items() if each}


class Closed:
    """A part of the specification: a key that is no field of it is refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid"}
