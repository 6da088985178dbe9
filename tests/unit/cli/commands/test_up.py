"""Starting and stopping Airflow here: no wait is silent."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event

import pytest

from frenzy.cli.commands import up
from frenzy.cli.embedded.stack import Stack
from frenzy.settings import load_settings


def test_a_wait_says_what_is_done_and_for_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack, said, printed = Stack(load_settings({"FRENZY_HOME": str(tmp_path)})), Event(), up.out

    def out() -> object:
        said.set()
        return printed()

    monkeypatch.setattr(up, "out", out)
    with up.told_while(stack, "Airflow starts", every_s=0.001):
        stack.doing = "scheduler, api-server not healthy yet"
        said.clear()
        assert said.wait(60)
    assert re.search(r"Airflow starts, for \d+ s: scheduler, api-server not healthy yet", capsys.readouterr().out)


def test_a_start_that_has_its_turn_does_not_say_that_another_command_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, doing = Stack(load_settings({"FRENZY_HOME": str(tmp_path)})), []
    monkeypatch.setattr(stack, "_is_alive", lambda name: True)
    monkeypatch.setattr(stack, "_start_missing", lambda names: doing.append(stack.doing))
    before = stack.doing
    stack.start()
    assert before not in doing and doing
