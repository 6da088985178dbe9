"""Training on conversations: only answers are learnt, and no layout changes a loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launching import LLAMA, SENTENCES, Case, LaunchServer, losses, records
from tests.trainer.reference import train_plainly

from frenzy.core.values import codec
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.sources import SourceRules
from frenzy.trainer.evaluate import EvaluationRequest, evaluate

TOLERANCE = 2e-5
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "A:{% generation %}{{ message.content }};{% endgeneration %}"
    "{% else %}Q:{{ message.content }};{% endif %}{% endfor %}"
)
CHAT = {"messages": {"template": TEMPLATE}, "document_masks": True}


def write_chats(folder: Path, *, with_bad_row: bool = False) -> str:
    """Answers of very different lengths: some sequences hold none."""
    turns = [(SENTENCES[number % 4] * (1 + number % 3), "yes no maybe"[: 1 + number % 12]) for number in range(300)]
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}
        for asked, answer in turns
    ]
    if with_bad_row:
        rows[6]["messages"].pop()
    file = folder / "chats.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def test_losses_are_the_mean_over_all_answers_on_every_layout_and_after_a_move(
    server: LaunchServer, tmp_path: Path
) -> None:
    whole = Case(
        run_dir=str(tmp_path / "whole"),
        data=write_chats(tmp_path),
        model=LLAMA,
        data_section=CHAT,
        num_gpus=2,
        zero_stage=2,
        micro_batch_size=1,
        job={"validation": {"every_steps": 4, "max_sequences": 7}, "evaluation": {"max_sequences": 7}},
    )
    assert server.run(whole).exit_code == ExitCode.DONE
    plain, _ = train_plainly(whole, tmp_path / "plain")
    assert losses(whole) == pytest.approx(plain, abs=TOLERANCE)

    fused = {"loss": "fused"}
    first = replace(whole, run_dir=str(tmp_path / "moved"), num_gpus=1, zero_stage=3, num_steps=2, training=fused)
    second = replace(first, attempt=2, num_gpus=2, micro_batch_size=4, num_steps=4)
    assert server.run(first).exit_code == ExitCode.DONE
    assert server.run(second).exit_code == ExitCode.DONE
    assert losses(first) + losses(second) == pytest.approx(plain, abs=TOLERANCE)

    job, paths = whole.spec().job, RunPaths(whole.run_dir)
    config = json.loads((Path(paths.model_dir) / "config.json").read_text())
    request = EvaluationRequest(
        run_dir=whole.run_dir, job=job, model_config=config, sources=SourceRules(), output=str(tmp_path / "out")
    )
    found = evaluate(codec.decode(EvaluationRequest, codec.encode(request)), tmp_path / "scratch")
    assert found.loss == pytest.approx(records(whole)[-1].validation_loss, abs=1e-4)
    assert found.num_tokens < 7 * 31 / 2, "questions are not scored"


def test_a_row_without_an_answer_ends_the_job_with_its_number(server: LaunchServer, tmp_path: Path) -> None:
    case = Case(run_dir=str(tmp_path), data=write_chats(tmp_path, with_bad_row=True), data_section=CHAT)
    result = server.run(case)
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert "line 7" in result.detail
    assert "needs a message of the assistant's" in result.detail
