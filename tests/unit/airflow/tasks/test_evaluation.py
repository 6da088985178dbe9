"""How the task ends by what the evaluation's process ended with."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from tests.contract import values
from tests.unit.airflow_secrets import SECRET, hold_secrets

from frenzy.airflow.tasks.evaluation import Evaluation, check_end
from frenzy.core.values.run_files import ExitCode
from frenzy.trainer.evaluate import NO_ROOM


def test_a_model_without_room_skips_the_task_with_the_reason_and_does_not_fail_the_run() -> None:
    assert NO_ROOM not in set(ExitCode)
    with pytest.raises(AirflowSkipException, match="takes 40 GiB"):
        check_end(NO_ROOM, "The model takes 40 GiB of host memory")


@pytest.mark.parametrize(
    ("exit_code", "how"),
    [(-9, "was killed by SIGKILL"), (1, "ended with 1"), (ExitCode.BAD_CONFIG_OR_DATA, "ended with 99")],
)
def test_any_other_end_fails_the_task_with_how_it_ended_and_the_last_line(exit_code: int, how: str) -> None:
    with pytest.raises(AirflowFailException, match=f"The evaluation {how}: what went wrong"):
        check_end(exit_code, "what went wrong")


def test_a_good_end_is_none_to_speak_of() -> None:
    check_end(ExitCode.DONE, "{}")


def test_the_evaluation_sees_nothing_that_airflows_task_holds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It loads a model and data that a user chose; this one prints its environment."""
    hold_secrets(monkeypatch)
    command = [sys.executable, "-c", "import os; print(dict(os.environ))"]
    with caplog.at_level(logging.INFO):
        Evaluation(cast(Any, None), logging.getLogger("task"))._run(command, "", values.run(), scratch=str(tmp_path))
    assert "PYTHONUNBUFFERED" in caplog.text
    assert SECRET not in caplog.text


def test_what_a_killed_evaluation_leaves_lies_in_the_folder_that_the_task_removes(tmp_path: Path) -> None:
    killed = "import os, signal, tempfile; tempfile.mkdtemp(); os.kill(os.getpid(), signal.SIGKILL)"
    evaluation = Evaluation(cast(Any, None), logging.getLogger("task"))
    with pytest.raises(AirflowFailException, match="SIGKILL"):
        evaluation._run([sys.executable, "-c", killed], "", values.run(), scratch=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
