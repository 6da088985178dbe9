"""The first failure of an attempt on several nodes: nodes tell one another through the run directory.

When a rank of node 1 runs out of memory, node 0 sees only lost connections. Each node that fails
leaves its own result; node 0 waits a moment for one that says more than its own.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from frenzy.core.values import codec
from frenzy.core.values.launch import AttemptResult, LaunchSpec
from frenzy.core.values.run_files import GOOD_EXITS, RunPaths
from frenzy.trainer import files
from frenzy.trainer.outcome import says_little

logger = logging.getLogger("frenzy.trainer")
_WAIT_S: Final = 15.0
_POLL_S: Final = 0.25


def share_failures(spec: LaunchSpec, *, node_rank: int, own: AttemptResult) -> AttemptResult:
    """``own``, or on node 0 the result of the node whose failure explains it."""
    if own.exit_code in GOOD_EXITS:
        return own
    if node_rank > 0:
        _leave(_place(spec, node_rank), own)
        return own
    if says_little(own.exit_code) == 0:
        return own
    return _telling_failure(spec) or own


def _telling_failure(spec: LaunchSpec) -> AttemptResult | None:
    deadline = time.monotonic() + _WAIT_S
    waiting = set(range(1, len(spec.gpus_per_node)))
    while waiting and time.monotonic() < deadline:
        for node_rank in sorted(waiting):
            try:
                result = codec.loads(AttemptResult, files.read_text(_place(spec, node_rank)))
            except OSError:  # not there yet, or its store is away
                continue
            if says_little(result.exit_code) == 0:
                return result
            waiting.discard(node_rank)
        time.sleep(_POLL_S)
    return None


def _leave(place: str, own: AttemptResult) -> None:
    try:
        files.write_text(place, codec.dumps(own))
    except OSError as error:
        logger.warning("other nodes do not hear of this one's failure: %s", error)


def _place(spec: LaunchSpec, node_rank: int) -> str:
    return f"{RunPaths(spec.run_dir).attempt_dir(spec.attempt)}/node-{node_rank}.json"
