"""The ETL step of the example: paragraphs of a raw text as a parquet file, with statistics for planning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from frenzy.adapters.spec.job_spec import job_from_yaml, job_to_document
from frenzy.core.runs.ledger import DataFacts
from frenzy.core.values.codec import encode
from frenzy.core.values.job import DataSpec, EvaluationSpec, TrainingSpec

_STEPS = 20


def clean_text(source: Path, folder: Path, *, base: Path) -> dict[str, Any]:
    """Clean ``source`` into ``folder``; {"job": a spec like ``base`` on the result, "data_facts": its statistics}."""
    import pandas as pd

    raw = pd.Series(source.read_text(encoding="utf-8").split("\n\n"), name="text")
    tidy = raw.str.replace(r"[ \t]+", " ", regex=True).str.strip()
    table = tidy[tidy.str.len() > 0].drop_duplicates().to_frame()
    num_bytes = table["text"].map(lambda text: len(text.encode()))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "clean.parquet"
    table.to_parquet(path, index=False)
    # One token for each byte, and one that ends the paragraph.
    facts = DataFacts(
        num_rows=len(table),
        longest_sequence_tokens=int(num_bytes.max()) + 1,
        num_tokens=int(num_bytes.sum()) + len(table),
    )
    return {"job": _job(base, path), "data_facts": encode(facts)}


def _job(base: Path, data: Path) -> dict[str, Any]:
    """``base`` on ``data``, shortened to an example, without its callbacks."""
    job = job_from_yaml(base.read_text(encoding="utf-8"))
    training: TrainingSpec = replace(job.training, max_steps=_STEPS, warmup_steps=0, callbacks=())
    table = DataSpec(path=str(data), format="parquet", sequence_length=job.data.sequence_length)
    evaluation = EvaluationSpec(prompt=job.evaluation.prompt, max_new_tokens=job.evaluation.max_new_tokens)
    named = replace(job, name="etl-example", description="", data=table, training=training, evaluation=evaluation)
    return job_to_document(named)
