"""The tokenizer and the prepared tokens of a run: the same for all its attempts.

Either they were prepared before the run had GPUs, and the ledger has frozen which they are. Or the run's workers make
them, as they do where the data are small: then they lie in the run directory, and of several nodes the first says what
the source is and freezes the result; all prepare its shards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from frenzy.core.values import codec
from frenzy.core.values.errors import ContractError, PermanentError, Reason, ReasonCode, TemporaryError
from frenzy.core.values.job import DataSpec, TrainingJob
from frenzy.core.values.prepared_data import PreparedData, PreparedPaths
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer import files, heartbeats
from frenzy.trainer.data.chat_tokens import encoder_of
from frenzy.trainer.data.make_shards import Note, Share, key_of, prepare_shards
from frenzy.trainer.data.packing import (
    SURVEYING,
    PackedData,
    are_whole,
    find_packed,
    index_name,
    pack,
    packed_of,
    training_texts,
)
from frenzy.trainer.data.source_parts import Source, survey
from frenzy.trainer.data.token_shards import Shard
from frenzy.trainer.data.tokenizer import READY_FILE, make_tokenizer
from frenzy.trainer.outcome import BadInputError

_MOST_LISTING_BYTES: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The shards that were prepared, in order; their ids have ``num_bytes_per_token`` bytes."""

    num_bytes_per_token: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What the first of several preparers found, for the others; tokenizer: the name of its folder."""

    source: Source
    tokenizer: str


def frozen_tokenizer(prepared: PreparedData, paths: PreparedPaths, scratch: Path) -> Path:
    """A local folder with the tokenizer that was prepared. Raises PermanentError where it is gone."""
    place = paths.tokenizer(prepared.tokenizer)
    if not files.exists(f"{place}/{READY_FILE}"):
        raise _gone(place)
    return files.fetch_folder(place, scratch / "tokenizer")


def frozen_data(prepared: PreparedData, paths: PreparedPaths, data: DataSpec) -> PackedData:
    """The tokens that were prepared. Raises PermanentError where they are gone, or are not what was frozen."""
    place = paths.shards(prepared.shards)
    try:
        found = files.read_bytes(paths.listing(prepared.shards), most_bytes=_MOST_LISTING_BYTES, links=False)
        listing = codec.loads(Listing, found)
    except (FileNotFoundError, ContractError) as error:
        raise _gone(place) from error
    width = listing.num_bytes_per_token
    if width not in (2, 4) or not are_whole(listing.shards, place, width):
        raise _gone(place)
    packed = packed_of(data, place, listing.shards, width)
    frozen = (prepared.digest, prepared.num_train, prepared.num_validation)
    if (packed.digest, packed.num_train, packed.num_validation) != frozen:
        raise _gone(place)
    return packed


def _gone(place: str) -> PermanentError:
    detail = f"The data that were prepared for this run are not whole at {place}."
    remedy = "Clear the run's task profile and what follows it: the data are prepared again."
    return PermanentError(Reason(code=ReasonCode.DATA_NOT_PREPARED, detail=detail, remedy=remedy))


def run_tokenizer(job: TrainingJob, paths: RunPaths, scratch: Path, *, attempt: int, share: Share) -> Path:
    """A local folder with the run's tokenizer; the first node makes it. Raises BadInputError, and TemporaryError."""
    ready = f"{paths.tokenizer_dir}/{READY_FILE}"
    if share.rank == 0 and not files.exists(ready):
        tokenizer = job_tokenizer(job)
        with tempfile.TemporaryDirectory(prefix="frenzy-tokenizer-") as made:
            tokenizer.save_pretrained(made)
            files.publish_folder(Path(made), paths.tokenizer_dir, last=READY_FILE)
    heartbeats.wait_for(ready, signs_at=paths.heartbeat(attempt, 0), what="make the tokenizer")
    return files.fetch_folder(paths.tokenizer_dir, scratch / "tokenizer")


def run_data(
    job: TrainingJob, tokenizer: Any, paths: RunPaths, *, attempt: int, share: Share, note: Note = lambda _: None
) -> PackedData:
    """The tokens that are frozen, else those that all nodes prepare now. Raises BadInputError, TemporaryError."""
    name = index_name(job, tokenizer)
    index, announced = f"{paths.data_dir}/{name}", f"{paths.attempt_dir(attempt)}/source-of-{name}"
    found = find_packed(index, job.data)
    if found is not None:
        return found
    if share.rank == 0:
        source = survey(job.data, on_progress=heartbeats.counting(SURVEYING))
        if share.count > 1:
            files.write_text(announced, codec.dumps(source))
        return pack(job, tokenizer, paths.data_dir, share=share, source=source, note=note)
    signs_at = paths.heartbeat(attempt, 0)
    source = codec.loads(Source, heartbeats.wait_for(announced, signs_at=signs_at, what="say what the data are"))
    encoder = encoder_of(job.data, tokenizer)
    prepare_shards(job.data, source, encoder, f"{paths.data_dir}/{key_of(source, encoder)}", share=share)
    heartbeats.wait_for(index, signs_at=signs_at, what="prepare the data")
    packed = find_packed(index, job.data)
    if packed is None:
        detail = f"What the first node prepared at {index} is not whole."
        raise TemporaryError(Reason(code=ReasonCode.LAUNCH_FAILED, detail=detail), retry_after_s=60)
    return packed


def held_out_data(
    job: TrainingJob, tokenizer: Any, paths: RunPaths, *, attempt: int, share: Share, note: Note = lambda _: None
) -> PackedData | None:
    """What is held out and has a place of its own; None where it is a share of the training's. As ``run_data``."""
    if job.held_out is None:
        return None
    try:
        found = run_data(job.held_out, tokenizer, paths, attempt=attempt, share=share, note=note)
    except BadInputError as error:
        raise error.of_held_out() from error
    return as_held_out(found)


def as_held_out(packed: PackedData) -> PackedData:
    return replace(packed, num_train=0, num_validation=packed.num_train)


def job_tokenizer(job: TrainingJob) -> Any:
    """The tokenizer that ``job`` asks for, with the chat template that it gives."""
    tokenizer = make_tokenizer(job.model, _tokenizer_texts(job))
    if job.data.messages is not None and job.data.messages.template:
        tokenizer.chat_template = job.data.messages.template
    return tokenizer


def _tokenizer_texts(job: TrainingJob) -> Iterator[str]:
    """What a tokenizer is made of, where it is to be trained; each text is told of."""
    tell = heartbeats.counting("making the tokenizer: characters counted")
    texts = training_texts(job.data, tell) if job.model.tokenizer_used == "train" else ()
    for number, text in enumerate(texts, start=1):
        heartbeats.beat("making the tokenizer: texts read", number)
        yield text
