"""What a run says of the model it leaves, where the best checkpoint is needed for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from tests.trainer.put_only_store import PutOnlyStore

from frenzy.core.values.job import ValidationSpec
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.best_so_far import BestSoFar
from frenzy.trainer.loop.train import _account, _near, model_step


class UnreadableStore(PutOnlyStore):
    """A store that refuses to list, with an error of its own."""

    protocol = "unreadable"

    def isdir(self, path: str) -> bool:
        raise RuntimeError(f"AccessDenied: {path}")


fsspec.register_implementation(UnreadableStore.protocol, UnreadableStore, clobber=True)


def test_a_best_checkpoint_that_its_store_refuses_counts_as_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = SimpleNamespace(plan=SimpleNamespace(num_gpus=1, zero_stage=2, tp=1))
    run: Any = SimpleNamespace(paths=RunPaths(f"unreadable://{tmp_path}/run"), scratch=tmp_path, spec=spec)
    assert _near(run, 3) is None
    assert "AccessDenied" in caplog.text


def test_the_model_is_that_of_the_best_checkpoint_that_is_there() -> None:
    there = {3, 7}
    assert model_step((9, 7, 3), 12, there.__contains__) == 7, "the checkpoint of the best could not be written"
    assert model_step((9,), 12, there.__contains__) == 12
    assert model_step((12, 7), 12, there.__contains__) == 12, "the last step is the best"
    assert model_step((0,), 12, there.__contains__) == 12, "no validation has found any"


def test_the_account_names_the_best_checkpoint_that_the_model_is_not_of() -> None:
    validation = ValidationSpec(every_steps=1, keep_best=True, final_model="best")
    run: Any = SimpleNamespace(
        prepared=SimpleNamespace(total_steps=5), spec=SimpleNamespace(job=SimpleNamespace(validation=validation))
    )
    best = BestSoFar(loss=2.0, step=3, num_since=2)
    gone = "The best checkpoint, of step 3, could not be read or is not whole."
    assert list(_account(run, 5, 5, best)) == [gone, "The model is that of step 5."]
    assert list(_account(run, 5, 3, best)) == ["The model is that of step 3."]
