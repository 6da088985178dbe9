"""``python -m frenzy.trainer.prepare_data < request.json``, or ``--request PLACE``: data made ready before any GPU.

Makes the tokenizer and the token shards of a run, on all cores, in bounded memory, in the folder of the run's team:
what is there already is found by its content. Whoever begins again after a kill loses the shard under way. The end is
told in ``result.json`` of the request's folder and by the exit code, how far it is in ``progress.json`` beside it.

``--count N`` says that N processes share the shards, on as many machines. The first one (``--rank 0``) makes the
tokenizer, says what there is to make, does what nobody else has done, and tells the end; it needs none of the others.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from frenzy.core.runs.steps import steps_of
from frenzy.core.values import codec
from frenzy.core.values.errors import FrenzyError, TemporaryError
from frenzy.core.values.prepared_data import PreparedData, PreparingResult, PreparingSpec
from frenzy.core.values.run_files import ExitCode
from frenzy.trainer import env, files, heartbeats
from frenzy.trainer.launch.child import die_with_parent
from frenzy.trainer.outcome import describe_failure, write_termination_message

logger = logging.getLogger("frenzy.trainer")
# Of sysexits.h: another try may succeed.
TRY_AGAIN: Final = 75
# What a process left that was killed while it wrote a shard.
_LEFT: Final = ".shard-*.tmp"
_LEFT_FOR_S: Final = 6 * 3600.0


def prepare(spec: PreparingSpec, scratch: Path, *, count: int = 1) -> PreparedData:
    """Make, or find, what the run trains on. Raises BadInputError for data and tokenizers that cannot be used."""
    from frenzy.trainer.data.chat_tokens import encoder_of
    from frenzy.trainer.data.make_shards import Share, key_of, prepare_shards
    from frenzy.trainer.data.packing import SURVEYING, packed_of
    from frenzy.trainer.data.run_data import Announcement, Listing
    from frenzy.trainer.data.source_parts import survey
    from frenzy.trainer.data.tokenizer import load_tokenizer

    job = spec.job
    source = survey(job.data, on_progress=heartbeats.counting(SURVEYING))
    name = _tokenizer(spec, source.digest, scratch)
    if count > 1:
        files.write_text(spec.announced, codec.dumps(Announcement(source=source, tokenizer=name)))
    tokenizer = load_tokenizer(files.fetch_folder(spec.data.tokenizer(name), scratch / "tokenizer"))
    encoder = encoder_of(job.data, tokenizer)
    key = key_of(source, encoder)
    place, width = spec.data.shards(key), encoder.dtype.itemsize
    _remove_left(place)
    shards = prepare_shards(job.data, source, encoder, place, share=Share(count=count), note=_told)
    packed = packed_of(job.data, place, shards, width)
    files.write_text(spec.data.listing(key), codec.dumps(Listing(num_bytes_per_token=width, shards=shards)))
    return PreparedData(
        shards=key,
        tokenizer=name,
        digest=packed.digest,
        num_tokens=packed.num_tokens,
        num_train=packed.num_train,
        num_validation=packed.num_validation,
        total_steps=steps_of(job.training, num_sequences=packed.num_train),
    )


def help_prepare(spec: PreparingSpec, scratch: Path, *, rank: int, count: int) -> None:
    """Make shards of those that the first preparer announces; one that has none of its own is not needed."""
    from frenzy.trainer.data.chat_tokens import encoder_of
    from frenzy.trainer.data.make_shards import Share, key_of, prepare_shards
    from frenzy.trainer.data.run_data import Announcement
    from frenzy.trainer.data.tokenizer import load_tokenizer

    told = heartbeats.wait_for(spec.announced, signs_at=spec.signs, what="say what the data are")
    work = codec.loads(Announcement, told)
    if rank >= len(work.source.segments):
        return
    tokenizer = load_tokenizer(files.fetch_folder(spec.data.tokenizer(work.tokenizer), scratch / "tokenizer"))
    encoder = encoder_of(spec.job.data, tokenizer)
    place = spec.data.shards(key_of(work.source, encoder))
    prepare_shards(spec.job.data, work.source, encoder, place, share=Share(rank=rank, count=count), note=_told)


def _tokenizer(spec: PreparingSpec, source_digest: str, scratch: Path) -> str:
    """The name of the tokenizer's folder. One that is trained on the same text is found by it, any other is loaded."""
    from frenzy.trainer.data.encoding import Encoder
    from frenzy.trainer.data.run_data import job_tokenizer
    from frenzy.trainer.data.source_parts import digest_of
    from frenzy.trainer.data.tokenizer import READY_FILE

    model, heldout, messages = spec.job.model, spec.job.data.validation_fraction, spec.job.data.messages
    template = f" {messages.template}" if messages is not None and messages.template else ""
    trained = (
        digest_of(f"{source_digest} {model.tokenizer_vocab_size} {heldout}{template}")
        if model.tokenizer_used == "train"
        else None
    )
    if trained is not None and files.exists(f"{spec.data.tokenizer(trained)}/{READY_FILE}"):
        return trained
    tokenizer = job_tokenizer(spec.job)
    made = scratch / "made"
    tokenizer.save_pretrained(made)
    name = trained or (digest_of(f"{Encoder(tokenizer).digest}{template}") if template else Encoder(tokenizer).digest)
    files.publish_folder(made, spec.data.tokenizer(name), last=READY_FILE)
    return name


def _remove_left(place: str) -> None:
    folder = files.local_path(place)
    for each in () if folder is None else folder.glob(_LEFT):
        with suppress(FileNotFoundError):  # another preparer may put it into place meanwhile
            if time.time() - each.stat().st_mtime > _LEFT_FOR_S:
                each.unlink()


def _told(progress: Any) -> None:
    logger.info("%s", progress.sentence)


def run(spec: PreparingSpec, *, rank: int = 0, count: int = 1) -> PreparingResult:
    """``prepare``, or ``help_prepare`` from rank 1 on, and how it ended."""
    heartbeats.begin(spec.signs_of_helper(rank) if rank else spec.signs)
    try:
        with tempfile.TemporaryDirectory(prefix="frenzy-prepare-") as scratch:
            if rank:
                help_prepare(spec, Path(scratch), rank=rank, count=count)
                return PreparingResult(exit_code=ExitCode.DONE, detail="There is nothing left to help with.")
            return PreparingResult(exit_code=ExitCode.DONE, prepared=prepare(spec, Path(scratch), count=count))
    except TemporaryError as error:
        return PreparingResult(exit_code=TRY_AGAIN, detail=str(error))
    except Exception as error:
        traceback.print_exc()
        code, detail = describe_failure(error, virtual=False)
        return PreparingResult(exit_code=code, detail=detail)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare what the request names; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m frenzy.trainer.prepare_data", description=__doc__)
    parser.add_argument("--request", help="path or fsspec URL of the request; left out: standard input")
    parser.add_argument("--rank", type=int, default=0, help="which of those it is who share the work")
    parser.add_argument("--count", type=int, default=1, help="how many share the work")
    parser.add_argument("--dies-with-parent", action="store_true", help="end when the process ends that started this")
    options = parser.parse_args(given)
    place = options.request
    env.enter({}, virtual=False, arguments=given, module="frenzy.trainer.prepare_data")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.dies_with_parent:
        die_with_parent(signal.SIGTERM)
    try:
        spec = codec.loads(PreparingSpec, sys.stdin.read() if place is None else files.read_text(place))
    except (OSError, FrenzyError) as error:
        sys.stderr.write(f"The request cannot be read: {error}\n")
        return ExitCode.BAD_CONFIG_OR_DATA
    return _settle(spec, run(spec, rank=options.rank, count=options.count), is_first=options.rank == 0)


def _settle(spec: PreparingSpec, result: PreparingResult, *, is_first: bool) -> int:
    if is_first:
        files.write_text(spec.result, codec.dumps(result))
    place = env.termination_log()
    if place is not None:
        write_termination_message(place, exit_code=result.exit_code, detail=result.detail, last_step=0)
    sys.stdout.write(f"{result.detail or 'The data are prepared.'}\n")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
