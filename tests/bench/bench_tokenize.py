"""Preparing data beside the Rust tokenizer's own batch interface on all cores, and what memory it takes.

``FRENZY_BENCH_MIB`` of text (64 unless told), each way in a process of its own, the best of three. The goal holds on
an idle machine. Resident memory is that of the whole process, libraries among it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
from tests.bench.report import figure, publish

from frenzy.settings import CHECKOUT

_VOCABULARY: Final = 21_000
_TURNS: Final = 3
_DOCUMENT_BYTES: Final = 4_000
_MIB: Final = 2**20


def main() -> list[dict[str, Any]]:
    """Write a text, tokenise it both ways; the figures."""
    num_bytes = int(os.environ.get("FRENZY_BENCH_MIB", "64")) * _MIB
    with tempfile.TemporaryDirectory(prefix="frenzy-tokenize-") as name:
        folder = Path(name)
        _write(folder, num_bytes)
        own, batch, plain = (_best(folder, each) for each in ("prepare", "batch", "bytes"))
    rows = [
        figure("prepared, MiB of text a second", num_bytes / _MIB / own["s"], "MiB/s"),
        figure("the tokenizer's own batches, MiB of text a second", num_bytes / _MIB / batch["s"], "MiB/s"),
        figure("time of the tokenizer's own batches / time of preparing", batch["s"] / own["s"], "x"),
        figure("time of preparing / time of the tokenizer's own batches", own["s"] / batch["s"], "x", goal=1.25),
        figure("preparing, resident memory at most", own["peak_bytes"] / _MIB, "MiB", goal=1024),
        figure("bytes as tokens, MiB of text a second", num_bytes / _MIB / plain["s"], "MiB/s"),
        figure("bytes as tokens, resident memory at most", plain["peak_bytes"] / _MIB, "MiB", goal=1024),
    ]
    return publish("tokenize", rows)


def _write(folder: Path, num_bytes: int) -> None:
    """Documents of a few kB from the sample text, their words in another order each, and a tokenizer of them."""
    import random

    from frenzy.trainer.data.tokenizer import train_tokenizer

    words = (CHECKOUT / "include/data/tinyshakespeare.txt").read_text().split(" ")
    chance = random.Random(7)
    with (folder / "a.jsonl").open("w") as out:
        while out.tell() < num_bytes:
            start = chance.randrange(len(words) - 1000)
            out.write(json.dumps({"text": " ".join(words[start : start + 700])[:_DOCUMENT_BYTES]}) + "\n")
    with (folder / "a.jsonl").open() as file:
        texts = [json.loads(line)["text"] for _, line in zip(range(5_000), file, strict=False)]
    train_tokenizer(texts, vocab_size=_VOCABULARY).save_pretrained(folder / "tokenizer")


def _best(folder: Path, way: str) -> dict[str, float]:
    turns = [_turn(folder, way) for _ in range(_TURNS)]
    return {"s": min(each["s"] for each in turns), "peak_bytes": max(each["peak_bytes"] for each in turns)}


def _turn(folder: Path, way: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.bench_tokenize", way, str(folder)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true" if way == "batch" else "false"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        peak_bytes = 0
        while child.poll() is None:
            try:
                peak_bytes = max(peak_bytes, psutil.Process(child.pid).memory_info().rss)
            except psutil.NoSuchProcess:
                break
            time.sleep(0.05)
        assert child.stdout is not None
        return {"s": float(child.stdout.read()), "peak_bytes": peak_bytes}


def _work(way: str, folder: Path) -> float:
    """Seconds that it takes, with the tokenizer loaded; reading the texts is part of preparing only."""
    from frenzy.core.values.job import DataSpec
    from frenzy.trainer.data.encoding import Encoder
    from frenzy.trainer.data.make_shards import prepare_shards
    from frenzy.trainer.data.source_parts import survey
    from frenzy.trainer.data.tokenizer import byte_tokenizer, load_tokenizer

    data = DataSpec(path=str(folder / "a.jsonl"))
    tokenizer = byte_tokenizer() if way == "bytes" else load_tokenizer(folder / "tokenizer")
    if way == "batch":
        texts = [json.loads(line)["text"] for line in (folder / "a.jsonl").read_text().splitlines()]
        started_s = time.monotonic()
        for start in range(0, len(texts), 1_000):
            tokenizer.backend_tokenizer.encode_batch(texts[start : start + 1_000], add_special_tokens=False)
        return time.monotonic() - started_s
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        prepare_shards(data, survey(data), Encoder(tokenizer), place)
        return time.monotonic() - started_s


if __name__ == "__main__":
    print(_work(sys.argv[1], Path(sys.argv[2])))
