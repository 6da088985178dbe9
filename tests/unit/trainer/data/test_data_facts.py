"""What planning learns of the data, for each format, and what it refuses."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from frenzy.core.runs.ledger import DataFacts
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob, TrainingSpec, ValidationSpec
from frenzy.settings import CHECKOUT
from frenzy.trainer.data import data_facts as module
from frenzy.trainer.data.data_facts import data_facts
from frenzy.trainer.data.documents import documents
from frenzy.trainer.outcome import BadInputError

TEXTS = ("a short one", "the longest of the three by far", "ünïcode")


def job(path: Path, tokenizer: str = "byte", **data: Any) -> TrainingJob:
    return TrainingJob(
        name="words",
        model=ModelSpec(config={"model_type": "gpt2"}, tokenizer=tokenizer),
        data=DataSpec(path=str(path), **data),
        training=TrainingSpec(max_steps=1),
    )


def as_text(folder: Path) -> Path:
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


def as_jsonl(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")
    return path


def as_parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    parquet.write_table(arrow.table({"text": list(TEXTS)}), path)
    return path


@pytest.mark.parametrize("write", [as_text, as_jsonl, as_parquet])
def test_rows_bytes_and_the_longest_row_are_counted_in_every_format(tmp_path: Path, write: Any) -> None:
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert data_facts(job(write(tmp_path))) == DataFacts(
        num_tokens=num_bytes + 3, num_rows=3, longest_sequence_tokens=len(TEXTS[1]) + 1, vocab_size=257
    )


def test_a_trained_tokenizer_needs_fewer_tokens_the_larger_it_is(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("word " * 10_000, encoding="utf-8")
    num_tokens = data_facts(job(path, tokenizer="train")).num_tokens
    assert num_tokens is not None
    assert 50_000 / 4 < num_tokens < 50_000 / 2.5


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt", "spiece.model"])
def test_a_pretrained_model_brings_its_own_tokenizer(tmp_path: Path, file: str) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / file).write_text("{}")
    data = as_jsonl(tmp_path)
    given = replace(job(data), model=ModelSpec(path=str(tmp_path / "base")))
    facts, of_bytes = data_facts(given), data_facts(job(data))
    assert facts.vocab_size is None
    assert facts.num_tokens is not None and of_bytes.num_tokens is not None
    assert facts.num_tokens < of_bytes.num_tokens


def test_a_folder_of_a_model_without_a_tokenizer_is_refused_unless_the_job_names_one(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    data = as_jsonl(tmp_path)
    with pytest.raises(BadInputError, match=r"model\.path: .*base' is refused; there is no tokenizer in it.*byte"):
        data_facts(replace(job(data), model=ModelSpec(path=str(tmp_path / "base"))))
    bytes_ = data_facts(replace(job(data), model=ModelSpec(path=str(tmp_path / "base"), tokenizer="byte")))
    assert bytes_.vocab_size == 257
    assert data_facts(replace(job(data), model=ModelSpec(path="/models/elsewhere"))).num_rows == len(TEXTS)


def test_what_is_known_is_not_counted_again(tmp_path: Path) -> None:
    known = DataFacts(num_rows=5, longest_sequence_tokens=77, num_tokens=1234)
    facts = data_facts(job(as_jsonl(tmp_path)), known=known)
    assert (facts.num_rows, facts.longest_sequence_tokens, facts.num_tokens) == (5, 77, 1234)


def test_a_large_text_is_scaled_from_its_first_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    monkeypatch.setattr("frenzy.trainer.data.documents._PIECE_CHARACTERS", 1000)
    path = tmp_path / "large.txt"
    path.write_text("0123456789\n" * 1000, encoding="utf-8")
    num_tokens = data_facts(job(path)).num_tokens
    assert num_tokens == pytest.approx(11_000, rel=0.05)


def test_a_large_table_is_left_unknown_rather_than_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 10)
    assert data_facts(job(as_jsonl(tmp_path))).num_tokens is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (None, "", "data.path"),
        ("empty.txt", "", "no text"),
        ("rows.jsonl", '{"body": "x"}', "there are body"),
        ("rows.jsonl", "{", "one JSON object"),
        ("rows.bin", "x", "auto knows"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str | None, content: str, said: str) -> None:
    path = tmp_path / (name or "absent.txt")
    if name is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(BadInputError, match=said):
        data_facts(job(path))


def test_a_document_that_is_no_text_is_not_shown(tmp_path: Path) -> None:
    secret = "dXNlcjpzM2NyM3Q="
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": {"registry": {"auth": secret}}, secret * 3: 1}), encoding="utf-8")
    for column in ("auths", "text"):
        with pytest.raises(BadInputError) as refusal:
            data_facts(job(path, text_column=column))
        assert secret not in str(refusal.value)
    assert "auths" in str(refusal.value)


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.jsonl.gz"])
def test_a_line_that_would_fill_the_memory_is_refused_before_it_does(tmp_path: Path, name: str) -> None:
    with gzip.open(tmp_path / name, "wb") as file:
        for _ in range(200):
            file.write(b"a" * 1_000_000)
    code = f"""
from pathlib import Path
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob
from frenzy.trainer.data.data_facts import data_facts
try:
    data_facts(TrainingJob(name="x", model=ModelSpec(config={{}}), data=DataSpec(path={str(tmp_path / name)!r})))
except Exception as error:
    print(error)
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT / "plugins")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    said, peak_mib = done.stdout.splitlines()
    assert f"{name}' is refused; a line or text in it is longer than 16 million characters" in said
    assert int(peak_mib) < 300


def test_a_value_in_very_many_rows_of_a_table_is_in_memory_once(tmp_path: Path) -> None:
    rows = arrow.DictionaryArray.from_arrays(arrow.array([0] * 3_000, arrow.int32()), arrow.array(["x" * 10**6]))
    parquet.write_table(arrow.table({"text": rows}), tmp_path / "rows.parquet", store_schema=False)
    before = arrow.total_allocated_bytes()
    peak = max(arrow.total_allocated_bytes() - before for _ in islice(documents(job(tmp_path).data), 200))
    assert peak < 50 * 10**6


def test_a_text_in_a_table_is_bounded_like_a_line(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"text": ["x" * 17_000_000]}), tmp_path / "rows.parquet")
    with pytest.raises(BadInputError, match="longer than 16 million characters"):
        data_facts(job(tmp_path))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"id": [1], "content": ["x"]}, "has no such column; there are content, id"),
        ({"text": [1, 2]}, "holds int64 there, not strings"),
    ],
)
def test_a_table_without_a_column_of_text_is_refused(tmp_path: Path, rows: dict[str, Any], sentence: str) -> None:
    parquet.write_table(arrow.table(rows), tmp_path / "rows.parquet")
    with pytest.raises(BadInputError, match=sentence):
        data_facts(job(tmp_path))


def test_lines_without_text_are_read_up_to_a_bound_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_COST", 10_000)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x"}\n' + "\n" * 1_000 + "no JSON\n", encoding="utf-8")
    assert data_facts(job(path)).num_tokens is None, "the last line is not reached"


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from frenzy.core.values.job import DataSpec, ModelSpec, TrainingJob
from frenzy.trainer.data.data_facts import data_facts
data_facts(TrainingJob(name="x", model=ModelSpec(config={{}}), data=DataSpec(path={str(as_text(tmp_path))!r})))
print(sorted({{"torch", "transformers", "airflow", "pydantic", "pyarrow", "numpy"}} & set(sys.modules)))
"""
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT / "plugins")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_held_out_data_that_are_not_there_are_refused_before_anything_is_counted(tmp_path: Path) -> None:
    asked = job(as_text(tmp_path))
    asked = replace(asked, validation=ValidationSpec(path=str(tmp_path / "none.txt")))
    with pytest.raises(BadInputError, match=r"validation\.path: .*none\.txt"):
        data_facts(asked)
