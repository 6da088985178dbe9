"""What happens once on each node before its ranks start: tokenizer, token file, checkpoint, checks.

Runs in a short-lived child of the launcher, so that the libraries it uses leave neither threads
nor memory behind in the process the ranks are forked from.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.launch import LaunchSpec, RunPaths
from frenzy.trainer import files, heartbeats
from frenzy.trainer.callbacks import load_callbacks
from frenzy.trainer.checkpoint.store import PreparedCheckpoint, prepare_resume
from frenzy.trainer.data.packing import PackedData, pack, training_texts
from frenzy.trainer.data.tokenizer import READY_FILE, load_tokenizer, make_tokenizer
from frenzy.trainer.loop.learning_rate import total_steps
from frenzy.trainer.model.loading import (
    check_attention,
    check_builds,
    check_fit,
    check_plan,
    check_precision,
    load_config,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Local files and numbers every rank of this node starts from."""

    data: PackedData
    tokenizer_folder: Path
    eos_token_id: int
    total_steps: int
    resume: PreparedCheckpoint | None


def prepare(spec: LaunchSpec, scratch: Path, *, makes_tokenizer: bool) -> Prepared:
    """Make or find all of it. Raises BadInputError (PermanentError) for what cannot be trained.

    makes_tokenizer: this node is the one that makes a missing tokenizer; the others wait for it.
    """
    paths, job = RunPaths(spec.run_dir), spec.job
    heartbeats.beat("checking the model")
    load_callbacks(job.training.callbacks)
    given = load_config(job.model)
    check_plan(given, job, spec.plan)
    check_attention(job.training.attention)
    check_builds(given, job.training.attention)
    check_precision(job.training.precision)
    folder = _tokenizer_folder(spec, paths, scratch, makes_tokenizer=makes_tokenizer)
    tokenizer = load_tokenizer(folder)
    eos = int(tokenizer.eos_token_id)
    config = load_config(job.model, eos_token_id=eos)
    check_fit(config, job, largest_token_id=max(len(tokenizer) - 1, eos))
    data = pack(job, tokenizer, _data_folder(paths, scratch))
    heartbeats.beat("reading the checkpoint")
    return Prepared(
        data=data,
        tokenizer_folder=folder,
        eos_token_id=eos,
        total_steps=total_steps(job.training, num_sequences=data.num_train),
        resume=_resume(spec, paths, scratch),
    )


def layout_of(spec: LaunchSpec) -> ParallelLayout:
    return ParallelLayout(spec.plan.num_gpus, spec.plan.zero_stage, spec.plan.tp)


def _resume(spec: LaunchSpec, paths: RunPaths, scratch: Path) -> PreparedCheckpoint | None:
    if spec.job.checkpoint.resume == "never":
        return None
    return prepare_resume(paths, scratch, layout_of(spec))


def _data_folder(paths: RunPaths, scratch: Path) -> Path:
    run_dir = files.local_path(paths.run_dir)
    return (run_dir or scratch) / "data"


def _tokenizer_folder(spec: LaunchSpec, paths: RunPaths, scratch: Path, *, makes_tokenizer: bool) -> Path:
    ready = f"{paths.tokenizer_dir}/{READY_FILE}"
    if not files.exists(ready):
        if makes_tokenizer:
            tokenizer = make_tokenizer(spec.job.model, _texts(spec))
            with tempfile.TemporaryDirectory(prefix="frenzy-tokenizer-") as made:
                tokenizer.save_pretrained(made)
                files.publish_folder(Path(made), paths.tokenizer_dir, last=READY_FILE)
        else:
            signs_at = paths.heartbeat(spec.attempt, 0)
            heartbeats.wait_for(ready, signs_at=signs_at, what="make the tokenizer")
    return files.fetch_folder(paths.tokenizer_dir, scratch / "tokenizer")


def _texts(spec: LaunchSpec) -> Iterator[str]:
    texts = training_texts(spec.job.data) if spec.job.model.tokenizer == "train" else ()
    for number, text in enumerate(texts, start=1):
        heartbeats.beat("making the tokenizer: texts read", number)
        yield text
