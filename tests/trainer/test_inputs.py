"""What the trainer reads: data in three forms, tokenizers, callbacks, stores; and what it refuses."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.fake_hub import serving
from tests.trainer.launching import GPT2, REPOSITORY, SENTENCES, Case, LaunchServer, losses

from frenzy.adapters.model_config import resolve_model_config
from frenzy.core.values import codec
from frenzy.core.values.launch import AttemptResult
from frenzy.core.values.run_files import ExitCode, RunPaths
from frenzy.core.values.sources import SourceRules
from frenzy.trainer import files
from frenzy.trainer.evaluate import NO_ROOM, EvaluationRequest, main

ROWS = [f"{number}. {SENTENCES[number % len(SENTENCES)]}" for number in range(200)]


def _jsonl(folder: Path) -> Path:
    with gzip.open(folder / "rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"id": number, "body": row}) + "\n" for number, row in enumerate(ROWS))
    return folder / "rows.jsonl.gz"


def _parquet(folder: Path) -> Path:
    for part in (0, 1):
        frame = pandas.DataFrame({"id": range(100), "body": ROWS[100 * part : 100 * (part + 1)]})
        frame.to_parquet(folder / f"part-{part}.parquet")
    return folder


def test_the_same_rows_train_the_same_from_jsonl_and_parquet(server: LaunchServer, tmp_path: Path) -> None:
    found = []
    for make in (_jsonl, _parquet):
        source = tmp_path / make.__name__
        source.mkdir()
        run_dir = str(tmp_path / f"run{make.__name__}")
        case = Case(run_dir=run_dir, data=str(make(source)), data_section={"text_column": "body"})
        assert server.run(case).exit_code == ExitCode.DONE
        found.append(losses(case))
    assert found[0] == found[1]


def test_trained_tokenizer_is_kept_for_later_attempts_and_the_evaluation(
    server: LaunchServer,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = {"config": {**GPT2, "vocab_size": 300}, "tokenizer": "train", "tokenizer_vocab_size": 300}
    case = Case(run_dir=str(tmp_path), data=text, model_section=model, num_steps=2)
    assert server.run(case).exit_code == ExitCode.DONE
    made = (tmp_path / "tokenizer/tokenizer.json").read_bytes()
    assert server.run(replace(case, attempt=2)).exit_code == ExitCode.DONE
    assert (tmp_path / "tokenizer/tokenizer.json").read_bytes() == made
    command = [sys.executable, "-m", "frenzy.trainer.evaluate"]
    output = str(tmp_path / "result.json")
    job = case.spec().job
    # What the run's code says of its model's size is not believed: the ledger's config is.
    theirs = tmp_path / "model/config.json"
    theirs.write_text(json.dumps({**json.loads(theirs.read_text()), "n_positions": 2**40, "n_layer": 10**9}))
    (tmp_path / "model/generation_config.json").write_text(json.dumps({"num_beams": 10**6}))
    asked = EvaluationRequest(
        run_dir=case.run_dir,
        job=job,
        model_config=resolve_model_config(job.model),
        sources=SourceRules(),
        output=output,
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "plugins"), "OMP_NUM_THREADS": "1"}
    request = codec.dumps(asked)
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, input=request, text=True)
    assert Path(output).read_text() == (tmp_path / "evaluation.json").read_text()
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert evaluation["held_out"] is True
    assert 1.0 < evaluation["perplexity"] < 300.0
    assert evaluation["sample"]
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "stdin", io.StringIO(request))
    assert main() == ExitCode.BAD_CONFIG_OR_DATA
    assert "prepared data are gone" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    _make_huge(Path(RunPaths(case.run_dir).model_dir))
    monkeypatch.setattr(sys, "stdin", io.StringIO(request))
    assert main() == NO_ROOM
    assert "4096 TiB of host memory in fp32" in capsys.readouterr().err.splitlines()[-1]
    secret = tmp_path.parent / f"{tmp_path.name}.secret"
    secret.write_text("{}")
    (tmp_path / "model/tokenizer.json").unlink()
    (tmp_path / "model/tokenizer.json").symlink_to(secret)
    monkeypatch.setattr(sys, "stdin", io.StringIO(request))
    assert main() == ExitCode.BAD_CONFIG_OR_DATA
    assert "holds plain files only" in capsys.readouterr().err


def _make_huge(model_dir: Path) -> None:
    """Say of the stored model that it has a quadrillion weights more."""
    header = json.dumps({"huge": {"dtype": "BF16", "shape": [2**20, 2**30], "data_offsets": [0, 0]}}).encode()
    (model_dir / "more.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def test_text_edited_in_mid_run_changes_nothing(server: LaunchServer, tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("\n".join(ROWS))
    case = Case(run_dir=str(tmp_path / "run"), data=str(source), job={"checkpoint": {"resume": "never"}})
    assert server.run(case).exit_code == ExitCode.DONE
    source.write_text("something else entirely " * 500)
    assert server.run(replace(case, attempt=2)).exit_code == ExitCode.DONE
    assert losses(replace(case, attempt=2)) == losses(case)


def test_users_callbacks_see_every_event_and_keep_their_state(server: LaunchServer, text: str, tmp_path: Path) -> None:
    callback = {"path": "acme.diary:Diary", "args": {"folder": str(tmp_path)}}
    case = Case(
        run_dir=str(tmp_path / "run"),
        data=text,
        num_steps=3,
        training={"callbacks": [callback]},
        job={"checkpoint": {"every_steps": 2}},
    )
    assert server.run(case).exit_code == ExitCode.DONE
    diary = tmp_path / "rank-0.txt"
    assert diary.read_text().splitlines() == [
        "begin at 0 with 0 counted",
        "step 1 of 3",
        "step 2 of 3",
        "checkpoint 2",
        "step 3 of 3",
        "checkpoint 3",
        "end at 3",
    ]
    diary.unlink()
    assert server.run(replace(case, attempt=2)).exit_code == ExitCode.DONE
    assert diary.read_text().splitlines() == ["begin at 3 with 3 counted", "end at 3"]


def test_run_directory_may_be_a_url(server: LaunchServer, text: str, tmp_path: Path) -> None:
    case = Case(run_dir=f"local://{tmp_path}/run", data=f"file://{text}", num_gpus=2)
    assert server.run(case).exit_code == ExitCode.DONE
    attempt = tmp_path / "run/attempt-1"
    assert {each.name for each in (attempt / "logs").iterdir()} == {"prepare.log", "rank-0.log", "rank-1.log"}
    assert len(list((attempt / "telemetry").iterdir())) >= 2
    assert (tmp_path / "run/model/model.safetensors").exists()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "vocabulary": (
        {"model": {**GPT2, "vocab_size": 250}},
        "model.config.vocab_size: 250 is refused; the tokenizer has ids up to 256; give at least 257",
    ),
    "positions": (
        {"data_section": {"sequence_length": 128}},
        "data.sequence_length: 128 is refused; the model has 64 positions",
    ),
    "missing data": ({"data": "/nowhere/at/all.txt"}, "data.path: '/nowhere/at/all.txt' is refused; no data file"),
    "family": (
        {"model": {"model_type": "no-such-family"}},
        "model.config: {'model_type': 'no-such-family'} is refused",
    ),
    "model widths": ({"model": {**GPT2, "n_head": 3}}, "`embed_dim` must be divisible by num_heads"),
    "no language model": ({"model": {"model_type": "vit"}}, "no causal language model can be made of it"),
    "callback": (
        {"training": {"callbacks": [{"path": "acme.diary:Missing", "args": {}}]}},
        "training.callbacks[0].path: 'acme.diary:Missing' is refused",
    ),
    "callback arguments": (
        {"training": {"callbacks": [{"path": "acme.diary:Diary", "args": {"place": "x"}}]}},
        "training.callbacks[0].args: {'place': 'x'} is refused",
    ),
    "warm start": ({"job": {"checkpoint": {"warm_start": "no-such-run"}}}, "checkpoint.warm_start: 'no-such-run'"),
    "adapters": (
        {"training": {"lora": {"target_modules": ["nothing"]}}},
        "training.lora.target_modules: ['nothing'] is refused",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_input_ends_with_99_and_a_sentence(
    server: LaunchServer, text: str, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    result = server.run(replace(Case(run_dir=str(tmp_path / "run"), data=text), **change))
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert sentence in result.detail
    assert "\n" not in result.detail


def _no_column(folder: Path) -> Path:
    pandas.DataFrame({"id": [1], "content": ["x"]}).to_parquet(folder / "a.parquet")
    return folder


def _not_json(folder: Path) -> Path:
    (folder / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    return folder / "a.jsonl"


def _too_short(folder: Path) -> Path:
    (folder / "a.txt").write_text("short")
    return folder / "a.txt"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (_no_column, "data.text_column: 'text' is refused"),
        (_not_json, "line 2' is refused; each line must be one JSON object"),
        (_too_short, "its 6 tokens do not fill one training sequence of 32"),
    ],
)
def test_bad_data_ends_with_99_and_a_sentence(
    server: LaunchServer, tmp_path: Path, make: Callable[[Path], Path], sentence: str
) -> None:
    result = server.run(Case(run_dir=str(tmp_path / "run"), data=str(make(tmp_path))))
    assert result.exit_code == ExitCode.BAD_CONFIG_OR_DATA
    assert sentence in result.detail


def test_command_enters_its_environment_and_leaves_a_termination_message(text: str, tmp_path: Path) -> None:
    message = tmp_path / "termination.json"
    case = Case(
        run_dir=str(tmp_path / "run"),
        data=text,
        model={**GPT2, "vocab_size": 250},
        job={"env": {"HF_HUB_OFFLINE": "1"}},
    )
    files.write_text(RunPaths(case.run_dir).spec(1), codec.dumps(case.spec()))
    command = [sys.executable, "-m", "frenzy.trainer.launch", "--run-dir", case.run_dir, "--attempt", "1"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY / "plugins"),
        "FRENZY_TERMINATION_LOG": str(message),
    }
    ended = subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == ExitCode.BAD_CONFIG_OR_DATA
    said = json.loads(message.read_text())
    result = codec.loads(AttemptResult, Path(RunPaths(case.run_dir).result(1)).read_text())
    assert said == {"exit_code": 99, "last_step": 0, "detail": result.detail}
    assert "Traceback" not in ended.stderr


def test_unreadable_spec_is_refused_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frenzy.trainer.launch", "--run-dir", str(tmp_path), "--attempt", "3"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "plugins")}
    ended = subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == ExitCode.BAD_CONFIG_OR_DATA
    assert "spec.json of attempt 3 cannot be read" in ended.stderr


def test_a_hubs_model_is_fetched_once_for_all_ranks_and_not_for_a_resume(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, GPT2Config

    AutoModelForCausalLM.from_config(GPT2Config(**{**GPT2, "vocab_size": 257})).save_pretrained(tmp_path / "made")
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        commit = hub.push("acme/tiny", {each.name: each.read_bytes() for each in (tmp_path / "made").iterdir()})
        case = Case(
            run_dir=str(tmp_path / "run"),
            data=text,
            model_section={"hub_id": "acme/tiny", "revision": commit, "tokenizer": "byte"},
            num_gpus=2,
            num_steps=2,
            job={"checkpoint": {"every_steps": 1}},
        )
        for attempt, num_fetched in ((1, 1), (2, 0)):
            hub.fetched.clear()
            monkeypatch.setenv("HF_HOME", str(tmp_path / f"node-{attempt}"))
            server = LaunchServer()
            result = server.run(replace(case, attempt=attempt, num_steps=1 + attempt))
            server.close()
            assert result.exit_code == ExitCode.DONE, result
            assert hub.fetched["model.safetensors"] == num_fetched
            assert hub.fetched["config.json"] == 1
