"""What happens once on each node before its ranks start: tokenizer, prepared tokens, checkpoint, checks.

Runs in a short-lived child of the launcher, so that the libraries it uses leave neither threads
nor memory behind in the process the ranks are forked from.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from frenzy.core.lifecycle.resume import ParallelLayout
from frenzy.core.values.job import ModelSpec
from frenzy.core.values.launch import LaunchSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import heartbeats
from frenzy.trainer.callbacks import load_callbacks
from frenzy.trainer.checkpoint.store import PreparedCheckpoint, prepare_resume
from frenzy.trainer.data.make_shards import Progress, Share
from frenzy.trainer.data.packing import PackedData
from frenzy.trainer.data.run_data import frozen_data, frozen_tokenizer, held_out_data, run_data, run_tokenizer
from frenzy.trainer.data.tokenizer import load_tokenizer
from frenzy.trainer.loop.learning_rate import total_steps
from frenzy.trainer.model.hub import fetch_weights_of, on_this_machine
from frenzy.trainer.model.loading import (
    check_attention,
    check_builds,
    check_fit,
    check_kernels,
    check_plan,
    check_precision,
    load_config,
)
from frenzy.trainer.model.making import warm_start_folder
from frenzy.trainer.outcome import BadInputError

logger = logging.getLogger("frenzy.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Local files and numbers every rank of this node starts from.

    model: the job's, a hub's in a folder. held_out: ``data``, or what is held out and has a place of its own.
    """

    model: ModelSpec
    data: PackedData
    held_out: PackedData
    tokenizer_folder: Path
    eos_token_id: int
    total_steps: int
    resume: PreparedCheckpoint | None


def prepare(spec: LaunchSpec, scratch: Path, *, share: Share) -> Prepared:
    """Make or find all of it. Raises BadInputError (PermanentError) for what cannot be trained.

    share: which of the attempt's nodes this is; the first makes what there must be one of.
    """
    paths, asked = RunPaths(spec.run_dir), spec.job.model
    job = replace(spec.job, model=on_this_machine(asked))
    heartbeats.beat("checking the model")
    load_callbacks(job.training.callbacks)
    given = load_config(job.model)
    check_plan(given, job, spec.plan)
    check_attention(job.training.attention)
    check_kernels(job.training)
    check_builds(given, job.training.attention)
    check_precision(job.training.precision)
    frozen = spec.prepared
    if frozen is not None:
        folder = frozen_tokenizer(frozen, spec.data, scratch)
    else:
        folder = run_tokenizer(job, paths, scratch, attempt=spec.attempt, share=share)
    tokenizer = load_tokenizer(folder)
    eos = int(tokenizer.eos_token_id)
    config = load_config(job.model, eos_token_id=eos)
    check_fit(config, job, largest_token_id=max(len(tokenizer) - 1, eos))
    if frozen is not None:
        data = frozen_data(frozen, spec.data, job.data)
    else:
        data = run_data(job, tokenizer, paths, attempt=spec.attempt, share=share, note=_log)
    held_out = held_out_data(job, tokenizer, paths, attempt=spec.attempt, share=share, note=_log) or data
    if job.validation.every_steps is not None and held_out.num_validation == 0:
        allowed = "the text fills one sequence, so none is held out to validate on; give more text"
        raise BadInputError("validation.every_steps", job.validation.every_steps, allowed)
    heartbeats.beat("reading the checkpoint")
    resume = _resume(spec, paths, scratch)
    if resume is None and job.checkpoint.warm_start is not None:
        # Here, so that the ranks of the node find it and do not fetch it each.
        warm_start_folder(job.checkpoint.warm_start, os.path.dirname(spec.run_dir), scratch)  # noqa: PTH120  # may be a URL
    elif resume is None:
        fetch_weights_of(asked)
    return Prepared(
        model=job.model,
        data=data,
        held_out=held_out,
        tokenizer_folder=folder,
        eos_token_id=eos,
        total_steps=frozen.total_steps if frozen else total_steps(job.training, num_sequences=data.num_train),
        resume=resume,
    )


def _resume(spec: LaunchSpec, paths: RunPaths, scratch: Path) -> PreparedCheckpoint | None:
    if spec.job.checkpoint.resume == "never":
        return None
    return prepare_resume(paths, scratch, ParallelLayout.of(spec.plan))


def _log(progress: Progress) -> None:
    logger.info("%s", progress.sentence)
