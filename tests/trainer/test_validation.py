"""Validation while a run trains: it changes no loss, ends the training early, and picks the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.launching import GPT2, Case, LaunchServer, losses, records
from tests.trainer.whole_checkpoints import list_checkpoints

from frenzy.core.values import codec
from frenzy.core.values.errors import Reason, ReasonCode
from frenzy.core.values.launch import AttemptResult, Control, ControlAction
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.sources import SourceRules
from frenzy.trainer import files
from frenzy.trainer.data.packing import SequenceReader, pack
from frenzy.trainer.data.run_data import as_held_out
from frenzy.trainer.data.tokenizer import byte_tokenizer
from frenzy.trainer.evaluate import EvaluationRequest, evaluate

TOLERANCE = 2e-5
NUM_SCORED = 10  # no multiple of what the ranks take in a turn
TRAINING = {
    "warmup_share": 0.3,
    "lr_schedule": "cosine",
    "lr_min_share": 0.1,
    "weight_decay": 0.5,
    "weight_decay_on": "matrices",
}
# Nothing falls by so much: the first validation stays the best, and the third after it is the last.
VALIDATION = {
    "every_steps": 1,
    "max_sequences": NUM_SCORED,
    "patience": 3,
    "min_improvement": 100.0,
    "keep_best": True,
    "final_model": "best",
}


def stops_after_its_first_step(server: LaunchServer, case: Case) -> None:
    asked = Control(action=ControlAction.CHECKPOINT_AND_STOP, reason=Reason(code=ReasonCode.MOVED_TO_GROW))
    files.write_text(RunPaths(case.run_dir).control(case.attempt), codec.dumps(asked))
    assert server.run(case).exit_code == ExitCode.CHECKPOINTED


def test_a_run_that_moves_twice_has_the_losses_and_the_early_end_of_one_that_never_stopped(
    server: LaunchServer, text: str, tmp_path: Path
) -> None:
    job = {"validation": VALIDATION, "checkpoint": {"keep": 1}}
    whole = Case(
        run_dir=str(tmp_path / "whole"), data=text, num_gpus=2, zero_stage=3, num_steps=8, training=TRAINING, job=job
    )
    expected = server.run(whole)
    first = replace(whole, run_dir=str(tmp_path / "moved"))
    second = replace(first, attempt=2, num_gpus=1, zero_stage=1, micro_batch_size=2)
    third = replace(first, attempt=3, zero_stage=2)
    stops_after_its_first_step(server, first)
    stops_after_its_first_step(server, second)
    moved = server.run(third)

    attempts = (first, second, third)
    assert [loss for each in attempts for loss in losses(each)] == pytest.approx(losses(whole), abs=TOLERANCE)
    validated = [each.validation_loss for each in records(third)]
    assert [each.validation_loss for case in (first, second) for each in records(case)] == [None, None], "stopped first"
    assert validated == pytest.approx([each.validation_loss for each in records(whole)][2:], abs=TOLERANCE)
    rates = [each.learning_rate for case in (first, second, third) for each in records(case)]
    assert rates == [each.learning_rate for each in records(whole)]
    for case, result in ((whole, expected), (third, moved)):
        ended(case, result, best=records(whole)[0].validation_loss or 0.0)


def ended(case: Case, result: AttemptResult, *, best: float) -> None:
    assert (result.exit_code, result.stopped_early) == (ExitCode.DONE, True)
    assert (result.last_step, result.total_steps) == (4, 4)
    assert "Stopped early after step 4 of 8" in result.detail
    assert "The model is that of step 1." in result.detail
    assert [each.step for each in list_checkpoints(RunPaths(case.run_dir))] == [4, 1], "the newest and the best"
    assert json.loads((Path(case.run_dir) / "model/frenzy_model.json").read_text())["step"] == 1
    assert held_out_loss(case) == pytest.approx(best, abs=1e-4)


def held_out_loss(case: Case) -> float:
    """Of the finished model, over the sequences that are scored, by transformers alone."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(RunPaths(case.run_dir).model_dir).eval()
    job = case.spec().job
    data = pack(job.held_out or job, byte_tokenizer(), RunPaths(case.run_dir).data_dir)
    data = data if job.held_out is None else as_held_out(data)
    assert data.num_validation > NUM_SCORED
    reader = SequenceReader(data)
    tokens = torch.from_numpy(reader.read(data.num_train + np.arange(NUM_SCORED)))
    reader.close()
    with torch.no_grad():
        return float(model(input_ids=tokens, labels=tokens).loss)


def test_held_out_data_with_a_place_of_their_own_are_validated_and_evaluated_on(
    server: LaunchServer, text: str, tmp_path: Path
) -> None:
    (tmp_path / "held-out.txt").write_text("\n".join(f"To be or not to be, that is question {n}." for n in range(100)))
    validation = {"every_steps": 3, "max_sequences": NUM_SCORED, "path": str(tmp_path / "held-out.txt")}
    case = Case(
        run_dir=str(tmp_path / "run"),
        data=text,
        num_steps=3,
        num_gpus=2,
        data_section={"validation_fraction": 0},
        job={"validation": validation, "evaluation": {"max_sequences": NUM_SCORED}},
    )
    assert server.run(case).exit_code == ExitCode.DONE
    found = records(case)[-1].validation_loss
    assert held_out_loss(case) == pytest.approx(found, abs=1e-4)
    job = case.spec().job
    request = EvaluationRequest(
        run_dir=case.run_dir, job=job, model_config=GPT2, sources=SourceRules(), output=str(tmp_path / "result.json")
    )
    scored = evaluate(request, tmp_path)
    assert (scored.held_out, scored.num_sequences) == (True, NUM_SCORED)
    assert scored.loss == pytest.approx(found, abs=1e-4)


def test_held_out_data_that_cannot_be_read_are_refused_by_their_field(
    server: LaunchServer, text: str, tmp_path: Path
) -> None:
    job = {"validation": {"every_steps": 1, "path": str(tmp_path / "none.txt")}}
    case = Case(run_dir=str(tmp_path / "run"), data=text, data_section={"validation_fraction": 0}, job=job)
    result = server.run(case)
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert result.detail.startswith("validation.path: ")


def test_validation_changes_no_loss_and_the_last_step_has_one(server: LaunchServer, text: str, tmp_path: Path) -> None:
    plain = Case(run_dir=str(tmp_path / "plain"), data=text, num_steps=3, model_section=None)
    validated = replace(plain, run_dir=str(tmp_path / "validated"), job={"validation": {"every_steps": 2}})
    for case in (plain, validated):
        result = server.run(case)
        assert (result.exit_code, result.last_step, result.stopped_early) == (ExitCode.DONE, 3, False)
    assert losses(validated) == losses(plain)
    assert [each.validation_loss is not None for each in records(validated)] == [False, True, True]
