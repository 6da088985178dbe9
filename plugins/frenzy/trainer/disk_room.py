"""Whether what has to be fetched has room on a worker's own disk, asked before it is.

A kubelet that ends a pod for its disk looks like a disruption, and on the next node it ends it again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from frenzy.core.values.units import format_bytes
from frenzy.trainer import env
from frenzy.trainer.outcome import BadInputError


def has_room(folder: Path, num_bytes: int) -> bool:
    """False where ``folder`` is on the worker's own disk, of which it may not take ``num_bytes``."""
    limit = env.disk_bytes()
    own = (Path.home(), Path(tempfile.gettempdir()))
    return limit is None or num_bytes <= limit or not any(folder.is_relative_to(each) for each in own)


def check_room(folder: Path, num_bytes: int, *, field: str, value: object) -> None:
    """Raises BadInputError where it has no room; field, value: the job's, for which they are fetched."""
    if not has_room(folder, num_bytes):
        allowed = (
            f"{format_bytes(num_bytes)} would be fetched to {folder}, and a worker may write "
            f"{format_bytes(env.disk_bytes() or 0)}: raise ephemeral_storage in the pod rules, or mount a volume "
            "(a hub's models lie where HF_HOME says)"
        )
        raise BadInputError(field, value, allowed)
