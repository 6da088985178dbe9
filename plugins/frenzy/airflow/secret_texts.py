"""Which texts of a rendered specification hold what the DAG's author took from a connection or a variable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk.log import mask_secret, redact

from frenzy.core.runs.masking import ALWAYS_SHOWN, hidden_texts, texts
from frenzy.core.values.errors import SpecError, Violation

_LOOKUP: Final = re.compile(r"\b(conn|var)\b")


def secret_paths(template: Any, rendered: Any) -> tuple[str, ...]:
    """Paths of the texts in ``rendered`` that are to be masked; none for the path of a file.

    They are those whose template names a connection or a variable, and those that hold what Airflow itself masks.
    Raises SpecError where such a secret stands in what cannot be hidden.
    """
    if not isinstance(rendered, Mapping):
        return ()
    looked_up = {path for path, text in texts(template) if _LOOKUP.search(text)}
    known = {path for path, text in texts(rendered) if redact(text) != text}
    shown = [path for path in sorted(looked_up & known) if re.split(r"[.\[]", path)[0] in ALWAYS_SHOWN]
    if shown:
        allowed = "everybody may see this field: it cannot hold a secret of a connection or a variable"
        raise SpecError([Violation(path=path, value="a secret", allowed=allowed) for path in shown])
    return tuple(sorted(looked_up | known))


def hide(rendered: Any, paths: tuple[str, ...]) -> None:
    """Let Airflow mask the texts at ``paths`` in the log of this task: not all of them it takes for secrets itself."""
    for text in hidden_texts(rendered, paths):
        mask_secret(text)
