"""Whether a run that starts over trains what its checkpoints were trained on."""

from __future__ import annotations

import json
from dataclasses import replace

from frenzy.core.memory.model_trace import library_config
from frenzy.core.runs.ledger import RunRecord, asked_model
from frenzy.core.values.codec import encode
from frenzy.core.values.resource_plan import short_hash


def knowing_its_checkpoints(before: RunRecord, run: RunRecord) -> RunRecord:
    """``run`` with what its checkpoints were trained on, as far as that is not what it trains: ``before`` may have been
    refused, and knows it then.
    """
    stale, prepared = before.stale_checkpoints, before.prepared or before.prepared_before
    if stale:
        is_same, prepared = _content(run) == stale, before.prepared_before
    else:
        is_same = _is_same(before, run)
    return replace(run, prepared_before=prepared, stale_checkpoints="" if is_same else stale or _content(before))


def _content(run: RunRecord) -> str:
    """A digest of what ``run`` trains: of a hub's model the asked revision counts."""
    job, asked = run.job, run.asked_model or asked_model(run.job.model)
    parts = (replace(job.model, revision=None), job.data, job.training, job.workload)
    texts = (json.dumps(encode(each), sort_keys=True) for each in (*parts, library_config(run.model_config or {})))
    return short_hash(asked, *texts)


def _is_same(before: RunRecord, run: RunRecord) -> bool:
    """Of a hub's model the asked revision counts: a record from before commits were kept costs no checkpoint."""
    return (
        replace(before.job.model, revision=run.job.model.revision) == run.job.model
        and before.was_asked_for(run.job.model, run.asked_model)
        and all(getattr(before.job, each) == getattr(run.job, each) for each in ("data", "training", "workload"))
        # Whatever was measured of it since.
        and library_config(before.model_config or {}) == library_config(run.model_config or {})
    )
