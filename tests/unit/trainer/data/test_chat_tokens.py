"""Conversations become tokens of which only the answers count; what cannot be told apart is refused with its row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from frenzy.core.values.job import DataSpec, MessagesSpec, ModelSpec, TrainingJob, TrainingSpec
from frenzy.trainer.data.batches import NOT_COUNTED, BatchReader
from frenzy.trainer.data.chat_tokens import COUNTED, START, ConversationEncoder, unmarked
from frenzy.trainer.data.conversations import conversation_line, parsed_line
from frenzy.trainer.data.data_facts import data_facts
from frenzy.trainer.data.encoding import TextBatch
from frenzy.trainer.data.packing import PackedData, SequenceReader, pack, training_texts
from frenzy.trainer.data.run_data import job_tokenizer
from frenzy.trainer.data.tokenizer import byte_tokenizer, train_tokenizer
from frenzy.trainer.outcome import BadInputError

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "A:{% generation %}{{ message.content }};{% endgeneration %}"
    "{% else %}{{ message.role }}:{{ message.content }};{% endif %}{% endfor %}"
)
ASKED = MessagesSpec(template=TEMPLATE)
Message = dict[str, Any]
CHATS: list[list[Message]] = [
    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
    [
        {"role": "system", "content": "Be brief — très."},
        {"role": "user", "content": "é?"},
        {"role": "assistant", "content": "oui, é"},
        {"role": "user", "content": "so?"},
        {"role": "assistant", "content": "no"},
    ],
]
END = 256


def job_of(place: Path, asked: MessagesSpec = ASKED, **data: Any) -> TrainingJob:
    spec = DataSpec(path=str(place), sequence_length=8, validation_fraction=0, messages=asked, **data)
    return TrainingJob(name="chat", model=ModelSpec(config={}), data=spec, training=TrainingSpec(max_steps=1))


def as_jsonl(folder: Path, chats: list[Any]) -> Path:
    file = folder / "chats.jsonl"
    file.write_text("\n".join(json.dumps({"messages": each}) for each in chats))
    return file


def as_parquet(folder: Path, chats: list[Any]) -> Path:
    file = folder / "chats.parquet"
    parquet.write_table(arrow.table({"messages": chats}), file)
    return file


def packed(job: TrainingJob, folder: Path) -> PackedData:
    return pack(job, job_tokenizer(job), folder / "data")


def answers(data: PackedData) -> tuple[str, str]:
    """All that was packed, and of it what counts."""
    reader = SequenceReader(data)
    tokens, counted, _ = reader.read_marked(np.arange(data.num_train))
    reader.close()
    assert counted is not None
    return bytes(tokens.ravel().tolist()).decode(errors="ignore"), bytes(tokens[counted].tolist()).decode()


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_only_what_the_assistant_says_counts(tmp_path: Path, write: Callable[[Path, list[Any]], Path]) -> None:
    text, counted = answers(packed(job_of(write(tmp_path, CHATS * 8)), tmp_path))
    assert text.startswith("user:2+2?;A:4;system:Be brief — très.;user:é?;A:oui, é;user:so?;A:no;user:2+2?;")
    assert counted.startswith("4;oui, é;no;4;oui, é;no;")
    assert "A:" not in counted


def test_columns_keys_and_roles_of_other_data_are_mapped(tmp_path: Path) -> None:
    rows = [[{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]] * 20
    (tmp_path / "chats.jsonl").write_text("\n".join(json.dumps({"conversations": each}) for each in rows))
    roles = {"human": "user", "gpt": "assistant"}
    asked = replace(ASKED, column="conversations", role="from", content="value", roles=roles)
    job = job_of(tmp_path / "chats.jsonl", asked)
    text, counted = answers(packed(job, tmp_path))
    assert text.startswith("user:hi;A:hello;")
    assert counted.startswith("hello;hello;")
    assert next(training_texts(job.data)) == "hi\nhello"
    assert data_facts(job).num_rows == 20


def test_a_conversation_is_a_document_of_its_own(tmp_path: Path) -> None:
    job = job_of(as_jsonl(tmp_path, CHATS * 8), document_masks=True)
    data = packed(job, tmp_path)
    batch = BatchReader(SequenceReader(data), job.data, END).read(np.arange(2))
    assert batch.positions is not None
    assert batch.positions.ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 0, 1]
    assert bytes(batch.tokens[1].tolist()) == b"?;A:4;sy"
    assert [each for each in batch.labels[1].tolist() if each != NOT_COUNTED] == list(b"4;")


contents = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
TRAINED = train_tokenizer(["user: what is this; A: it is that; user: why; A: because"] * 20, vocab_size=300)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), contents), max_size=4), st.booleans(), contents)
def test_what_counts_is_what_the_template_marks_whatever_is_said(
    others: list[tuple[str, str]], trained: bool, last: str
) -> None:
    tokenizer = TRAINED if trained else byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    chat = [{"role": role, "content": text} for role, text in [*others, ("assistant", last)]]
    line = conversation_line(chat, "row 1", ASKED)
    ids = ConversationEncoder(tokenizer).encode(TextBatch(segment=0, texts=((line, True),))).ids
    tokens, counted, starts = unmarked(ids, is_marked=True)
    assert counted is not None
    assert starts is not None
    assert starts.tolist() == [True] + [False] * (len(ids) - 1)
    said = "".join(f"{each['content']};" for each in chat if each["role"] == "assistant")
    if not trained:  # a learnt token may reach from the question into the answer
        assert bytes(tokens[counted].tolist()).decode() == said
    assert counted.any()
    assert max(tokens) < START < COUNTED


NO_ANSWER = [{"role": "user", "content": "hello?"}]
REFUSED: dict[str, tuple[Any, MessagesSpec, str]] = {
    "no answer": (NO_ANSWER, ASKED, "line 3.*needs a message of the assistant's"),
    "no list": ("hello", ASKED, "line 3.*holds a str there, not a list of messages"),
    "no text": ([{"role": "user", "content": [{"type": "image"}]}], ASKED, "line 3.*a list as 'content', not text"),
    "no role": ([{"content": "x"}], ASKED, "line 3.*has nothing as 'role', not text"),
    "content under another key": (
        [{"role": "user", "value": "hi"}, {"role": "assistant", "value": "hello"}],
        ASKED,
        "line 3.*nothing as 'content', not text; its keys are role, value",
    ),
    "silent assistant": (
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}],
        ASKED,
        "line 3.*its assistant says nothing",
    ),
    "unknown role": (
        [{"role": "user", "content": "hi"}, {"role": "Assistant", "content": "hello"}],
        ASKED,
        "data.messages.roles.*line 3.*the role 'Assistant'; map it to one of system",
    ),
    "no number": (
        [{"role": "user", "content": "hi", "score": float("nan")}, {"role": "assistant", "content": "x"}],
        ASKED,
        "line 3.*no JSON",
    ),
    "not applied": (
        [{"role": "tool", "content": "x"}],
        replace(
            ASKED, template="{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" + TEMPLATE
        ),
        "line 3.*cannot be applied there .*no tools",
    ),
}


@pytest.mark.parametrize(("row", "asked", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_row_that_cannot_be_learnt_is_refused_with_its_number(
    tmp_path: Path, row: Any, asked: MessagesSpec, words: str
) -> None:
    with pytest.raises(BadInputError, match=words):
        packed(job_of(as_jsonl(tmp_path, [*CHATS, row]), asked), tmp_path)


def test_a_row_of_parquet_is_refused_with_its_number(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"row 3.*needs a message of the assistant's"):
        packed(job_of(as_parquet(tmp_path, [*CHATS, NO_ANSWER])), tmp_path)


@pytest.mark.parametrize(
    ("template", "words"),
    [(None, "has no chat template"), ("{% for m in messages %}{{ m.content }}{% endfor %}", "no {% generation %}")],
)
def test_a_tokenizer_whose_template_marks_no_answers_is_refused_at_the_first_row(
    tmp_path: Path, template: str | None, words: str
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    job = job_of(as_jsonl(tmp_path, CHATS), MessagesSpec())
    with pytest.raises(BadInputError, match=f"line 1.*{words}"):
        pack(job, tokenizer, tmp_path / "data")


def test_another_template_makes_other_tokens_under_another_name(tmp_path: Path) -> None:
    file = as_jsonl(tmp_path, CHATS * 8)
    other = replace(ASKED, template=TEMPLATE.replace("A:", "B:"))
    first, second = (packed(job_of(file, each), tmp_path) for each in (ASKED, other))
    assert first.place != second.place
    assert first.digest != second.digest


def test_a_token_that_reaches_into_an_answer_is_learnt() -> None:
    tokenizer = train_tokenizer(["A: yes it is"] * 50, vocab_size=300)
    tokenizer.chat_template = "{% for m in messages %}A: {% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    line = conversation_line([{"role": "assistant", "content": "yes"}], "row 1", ASKED)
    ids = ConversationEncoder(tokenizer).encode(TextBatch(segment=0, texts=((line, True),))).ids
    tokens, counted, _ = unmarked(ids, is_marked=True)
    assert counted is not None
    assert tokenizer.decode(tokens[counted]).strip() == "yes"


def test_of_several_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = {"default": TEMPLATE, "tool_use": "none"}
    data = pack(job_of(as_jsonl(tmp_path, CHATS * 8), MessagesSpec()), tokenizer, tmp_path / "data")
    assert answers(data)[1].startswith("4;oui")


def test_a_mark_within_a_set_block_is_refused(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}{{ x }}"
        "{% endfor %}"
    )
    with pytest.raises(BadInputError, match="line 1.*within a {% set %} block"):
        packed(job_of(as_jsonl(tmp_path, CHATS), MessagesSpec(template=template)), tmp_path)


def test_what_is_empty_in_other_rows_is_no_part_of_a_message() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1, "b": None}}, "id": None}
    chat = [{"role": "assistant", "content": None, "tool_calls": [call], "name": None}]
    _, (message,) = parsed_line(conversation_line(chat, "row 1", ASKED))
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    }


def test_held_out_text_without_an_answer_is_refused_where_it_is_to_be_scored(tmp_path: Path) -> None:
    long_question = [{"role": "user", "content": "why " * 200}, {"role": "assistant", "content": "x"}]
    rows = as_jsonl(tmp_path, [*CHATS * 20, long_question])
    job = job_of(rows)
    job = replace(job, data=replace(job.data, validation_fraction=0.2))
    with pytest.raises(BadInputError, match="data.validation_fraction.*no answer is in the 2 sequences"):
        packed(replace(job, evaluation=replace(job.evaluation, max_sequences=2)), tmp_path)
    assert packed(replace(job, evaluation=replace(job.evaluation, enabled=False)), tmp_path).num_validation > 2


def test_held_out_conversations_without_an_answer_are_refused_by_their_own_field(tmp_path: Path) -> None:
    silent = tmp_path / "silent.jsonl"
    long_question = [{"role": "user", "content": "why " * 200}, {"role": "assistant", "content": "x"}]
    silent.write_text(json.dumps({"messages": long_question}))
    job = job_of(as_jsonl(tmp_path, CHATS * 20))
    job = replace(job, validation=replace(job.validation, path=str(silent)))
    job = replace(job, evaluation=replace(job.evaluation, max_sequences=2))
    assert packed(job, tmp_path).num_validation == 0
    assert job.held_out is not None
    with pytest.raises(BadInputError, match="validation.path.*no answer is in the 2 sequences"):
        packed(job.held_out, tmp_path)
