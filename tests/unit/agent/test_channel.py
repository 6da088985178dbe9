"""The agent in a script: what it says to its launcher, and that it says nothing outside Frenzy."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import frenzy_agent
from frenzy.settings import CHECKOUT
from frenzy.trainer.launch.script.reports import Report, ReportFile
from frenzy_agent.channel import Channel

AGENT = CHECKOUT / "plugins/frenzy/agent"


def channel(folder: Path, **variables: str) -> Channel:
    own = {"FRENZY_AGENT_REPORTS": str(folder / "reports"), "FRENZY_AGENT_STOP_FILE": str(folder / "stop")}
    return Channel({**own, **variables})


def said(folder: Path) -> list[Report]:
    return list(ReportFile(folder / "reports").new())


def test_steps_checkpoints_and_the_stop_arrive_as_they_were_said(tmp_path: Path) -> None:
    agent = channel(tmp_path)
    agent.step(1, loss=2.5, total_steps=9, tokens=64)
    assert not agent.should_stop()
    (tmp_path / "stop").touch()
    assert agent.should_stop()
    assert agent.should_stop(), "it stays so"
    agent.checkpointed(str(tmp_path / "one"))
    kinds = [(each.kind, each.step) for each in said(tmp_path)]
    assert kinds == [("hello", 0), ("step", 1), ("stopping", 1), ("checkpoint", 1)]
    step, checkpoint = said(tmp_path)[1], said(tmp_path)[3]
    assert (step.number("loss"), step.count("total_steps"), step.number("tokens")) == (2.5, 9, 64.0)
    assert checkpoint.text("path") == str(tmp_path / "one")


def test_its_first_words_name_the_installed_releases_and_nothing_is_imported_for_them(tmp_path: Path) -> None:
    code = "import sys, frenzy_agent; print('transformers' in sys.modules or 'torch' in sys.modules)"
    variables = {
        "FRENZY_AGENT_REPORTS": str(tmp_path / "reports"),
        "FRENZY_AGENT_STOP_FILE": str(tmp_path / "stop"),
        "PYTHONPATH": str(AGENT),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    hello, *_ = said(tmp_path)
    names = ("transformers", "deepspeed", "torch")
    assert hello.content["releases"] == {name: metadata.version(name) for name in names}


def test_a_library_that_is_not_installed_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            return "2.4.1"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    channel(tmp_path)
    assert said(tmp_path)[0].content["releases"] == {"torch": "2.4.1"}


def test_a_loss_that_is_no_number_is_none(tmp_path: Path) -> None:
    agent = channel(tmp_path)
    agent.step(1, loss=float("nan"))
    agent.step(2, loss=float("inf"))
    assert [each.number("loss") for each in said(tmp_path)[1:]] == [None, None]


def test_a_resumed_script_does_not_report_steps_that_are_done(tmp_path: Path) -> None:
    agent = channel(tmp_path, FRENZY_RESUME_FROM="/checkpoints/one", FRENZY_RESUME_STEP="7")
    assert (agent.resume_from, agent.resume_step) == ("/checkpoints/one", 7)
    agent.step(7)
    agent.step(8)
    agent.step(8)
    assert [(each.kind, each.step) for each in said(tmp_path)] == [("hello", 0), ("step", 8)]


def test_a_refusal_is_said_and_ends_the_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for agent in (channel(tmp_path), Channel({})):
        with pytest.raises(SystemExit) as ended:
            agent.refuse("row 7: it has no answer")
        assert ended.value.code == 99
        assert capsys.readouterr().err == "row 7: it has no answer\n"
    assert [(each.kind, each.text("why")) for each in said(tmp_path)[1:]] == [("refused", "row 7: it has no answer")]


def test_outside_frenzy_every_call_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Channel({})
    agent.step(1, loss=1.0)
    agent.checkpointed("anywhere")
    assert (agent.is_active, agent.should_stop(), agent.resume_from, agent.resume_step) == (False, False, None, 0)
    assert not list(tmp_path.iterdir())


def test_the_agent_is_imported_with_the_standard_library_alone() -> None:
    code = (
        "import sys, frenzy_agent; frenzy_agent.step(1); frenzy_agent.should_stop();"
        "print([n for n in sys.modules if n.partition('.')[0] not in sys.stdlib_module_names"
        " and n.partition('.')[0] not in ('frenzy_agent', '__main__')])"
    )
    environ = {"PYTHONPATH": str(AGENT), "PATH": os.environ["PATH"]}
    answer = subprocess.run([sys.executable, "-S", "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


class Engine:
    """As much of a DeepSpeed engine as the agent touches."""

    def __init__(self) -> None:
        self.global_steps = 0

    def step(self, *, boundary: bool = True) -> str:
        self.global_steps += boundary
        return "stepped"

    def backward(self, loss: Any) -> None:
        assert loss.detached == 2.0

    def save_checkpoint(self, folder: str, tag: str | None = None) -> str:
        return f"{folder}/{tag}"

    def zero_optimization_stage(self) -> int:
        return 0


def test_an_attached_engine_reports_what_it_does_and_answers_as_before(tmp_path: Path) -> None:
    from frenzy_agent.deepspeed_engine import attached

    engine: Any = attached(Engine(), channel(tmp_path))
    engine.backward(SimpleNamespace(detached=2.0, detach=lambda: 2.0))
    assert engine.step(boundary=False) == "stepped", "a micro-batch that is no step"
    assert engine.step() == "stepped"
    assert engine.save_checkpoint(str(tmp_path), tag="a") == f"{tmp_path}/a"
    assert [(each.kind, each.step) for each in said(tmp_path)] == [("hello", 0), ("step", 1), ("checkpoint", 1)]
    assert said(tmp_path)[1].number("loss") == 2.0


def test_the_callback_reports_each_step_once_with_the_loss_that_is_logged_after_it(tmp_path: Path) -> None:
    callback = frenzy_agent.FrenzyCallback(channel(tmp_path))
    state, control = SimpleNamespace(global_step=0, max_steps=3), SimpleNamespace(should_save=False)
    arguments = SimpleNamespace(output_dir=str(tmp_path))
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0)):
        callback.on_step_begin(arguments, state, control)
        state.global_step = step
        callback.on_step_end(arguments, state, control)
        callback.on_log(arguments, state, control, logs={"loss": loss, "learning_rate": 0.1})
    callback.on_save(arguments, state, control)
    callback.on_train_end(arguments, state, control)
    steps = [each for each in said(tmp_path) if each.kind == "step"]
    assert [(each.step, each.number("loss")) for each in steps] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert said(tmp_path)[-1].text("path") == str(tmp_path / "checkpoint-3")
    assert not control.should_save


def test_the_callback_saves_and_ends_the_training_when_it_is_asked_to(tmp_path: Path) -> None:
    callback = frenzy_agent.FrenzyCallback(channel(tmp_path))
    (tmp_path / "stop").touch()
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_step_end(SimpleNamespace(), SimpleNamespace(global_step=2, max_steps=9), control)
    assert control.should_save
    assert control.should_training_stop


# the launcher's side


@given(text=st.binary(max_size=200))
def test_what_is_no_report_is_passed_over(text: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "garbage"
    file.write_bytes(text + b'\n{"kind": "step", "step": 3}\n')
    found = list(ReportFile(file).new())
    assert (found[-1].kind, found[-1].step) == ("step", 3)


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "step", "step": -1}',
        '{"kind": "step", "step": true}',
        '{"kind": "step", "step": 1e300}',
        '{"kind": 3}',
        "[]",
        "[" * 20_000,
    ],
)
def test_a_report_that_cannot_be_true_is_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "reports").write_text(f"{line}\n")
    assert said(tmp_path) == []


def test_numbers_of_a_report_are_finite_and_counts_within_bounds() -> None:
    content = {"loss": float("nan"), "big": 10**400, "bytes": -1, "flag": True, "text": "x"}
    report = Report("step", 1, content)
    assert [report.number(each) for each in ("loss", "big", "flag", "text", "none")] == [None] * 5
    assert report.count("bytes") is None


def test_half_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = ReportFile(tmp_path / "reports")
    assert list(file.new()) == []
    with (tmp_path / "reports").open("a") as writer:
        writer.write('{"kind": "st')
        writer.flush()
        assert list(file.new()) == []
        writer.write('ep", "step": 1}\n')
        writer.flush()
    assert [each.step for each in file.new()] == [1]
    assert list(file.new()) == []


@pytest.mark.parametrize(
    ("last_lines", "kinds"),
    [
        ("os.kill(os.getpid(), signal.SIGABRT)", ["hello"]),
        ("raise ValueError('no')", ["hello"]),
        ("atexit._run_exitfuncs(); os.kill(os.getpid(), signal.SIGABRT)", ["hello", "ended"]),
        ("", ["hello", "ended"]),
    ],
)
def test_a_script_that_reached_its_last_line_says_so(tmp_path: Path, last_lines: str, kinds: list[str]) -> None:
    own = {"FRENZY_AGENT_REPORTS": str(tmp_path / "reports"), "FRENZY_AGENT_STOP_FILE": str(tmp_path / "stop")}
    code = f"import atexit, os, signal\nimport frenzy_agent\n{last_lines}"
    variables = {**os.environ, **own, "PYTHONPATH": str(AGENT)}
    subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, check=False)
    assert [each.kind for each in said(tmp_path)] == kinds


def test_a_long_reason_and_none_are_told_all_the_same(tmp_path: Path) -> None:
    for why in ("x" * 100_000, ""):
        with pytest.raises(SystemExit):
            channel(tmp_path).refuse(why)
    assert [each.text("why") for each in said(tmp_path) if each.kind == "refused"] == ["x" * 500, "It gave no reason."]
