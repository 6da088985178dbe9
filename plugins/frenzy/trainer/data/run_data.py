"""The tokenizer and the prepared tokens of a run: made by whoever comes first, the same for all that follow.

They lie in the run directory. Of several nodes the first says what the source is and freezes the result; all
prepare its shards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frenzy.core.values import codec
from frenzy.core.values.job import TrainingJob
from frenzy.core.values.launch import RunPaths
from frenzy.trainer import files, heartbeats
from frenzy.trainer.data.encoding import Encoder
from frenzy.trainer.data.packing import SURVEYING, PackedData, find_packed, index_name, pack, training_texts
from frenzy.trainer.data.preparing import Note, Share, key_of, prepare_shards
from frenzy.trainer.data.source_parts import Source, survey
from frenzy.trainer.data.tokenizer import READY_FILE, make_tokenizer
from frenzy.trainer.outcome import BadInputError


def run_tokenizer(job: TrainingJob, paths: RunPaths, scratch: Path, *, attempt: int, share: Share) -> Path:
    """A local folder with the run's tokenizer; the first node makes it. Raises BadInputError, and TemporaryError."""
    ready = f"{paths.tokenizer_dir}/{READY_FILE}"
    if share.rank == 0 and not files.exists(ready):
        tokenizer = make_tokenizer(job.model, _texts(job))
        with tempfile.TemporaryDirectory(prefix="frenzy-tokenizer-") as made:
            tokenizer.save_pretrained(made)
            files.publish_folder(Path(made), paths.tokenizer_dir, last=READY_FILE)
    heartbeats.wait_for(ready, signs_at=paths.heartbeat(attempt, 0), what="make the tokenizer")
    return files.fetch_folder(paths.tokenizer_dir, scratch / "tokenizer")


def run_data(
    job: TrainingJob, tokenizer: Any, paths: RunPaths, *, attempt: int, share: Share, note: Note = lambda _: None
) -> PackedData:
    """The tokens that are frozen, else those that all nodes prepare now. Raises BadInputError, TemporaryError."""
    index, announced = f"{paths.data_dir}/{index_name(job, tokenizer)}", f"{paths.attempt_dir(attempt)}/source.json"
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
    encoder = Encoder(tokenizer)
    prepare_shards(job.data, source, encoder, f"{paths.data_dir}/{key_of(source, encoder)}", share=share)
    heartbeats.wait_for(index, signs_at=signs_at, what="prepare the data")
    packed = find_packed(index, job.data)
    if packed is None:
        raise BadInputError("data.path", index, "what the first node prepared there is not whole")
    return packed


def _texts(job: TrainingJob) -> Iterator[str]:
    tell = heartbeats.counting("making the tokenizer: characters counted")
    texts = training_texts(job.data, tell) if job.model.tokenizer == "train" else ()
    for number, text in enumerate(texts, start=1):
        heartbeats.beat("making the tokenizer: texts read", number)
        yield text
