"""What is loaded behind a DeepSpeed engine of a user's, where the files are DeepSpeed's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frenzy.core.values.errors import ContractError
from frenzy.trainer.checkpoint import behind_engine
from frenzy.trainer.checkpoint.behind_engine import put_behind
from frenzy.trainer.checkpoint.saved_state import TrainState


class Engine:
    """As much of an engine as decides what it loads."""

    def __init__(self, *, stage: int, num_groups: int, universal: bool) -> None:
        self._stage, self._universal, self.loaded = stage, universal, ""
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}] * num_groups)
        self.global_steps, self.lr_scheduler = 7, None

    def zero_optimization_stage(self) -> int:
        return self._stage

    def load_universal_checkpoint(self) -> bool:
        return self._universal

    def save_checkpoint(
        self,
        save_dir: Any,
        tag: Any = None,
        client_state: Any = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        raise AssertionError("nothing is saved here")

    def load_checkpoint(self, load_dir: Any, tag: Any = None) -> tuple[str, dict[str, Any]]:
        self.loaded = str(load_dir)
        return self.loaded, {}


def test_a_universal_checkpoint_of_several_groups_is_refused_at_stage_3(tmp_path: Path) -> None:
    engine = put_behind(Engine(stage=3, num_groups=2, universal=True))
    with pytest.raises(ContractError, match="2 parameter groups cannot be loaded at stage 3"):
        engine.load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("stage", "num_groups", "universal"), [(2, 2, True), (3, 1, True), (3, 2, False)], ids=["stage", "group", "own"]
)
def test_other_files_of_deepspeeds_own_are_loaded_by_deepspeed(
    tmp_path: Path, stage: int, num_groups: int, universal: bool
) -> None:
    engine = put_behind(Engine(stage=stage, num_groups=num_groups, universal=universal))
    assert engine.load_checkpoint(tmp_path) == (str(tmp_path), {})


@pytest.mark.parametrize("excluded", [False, True])
def test_frozen_weights_are_left_out_of_a_checkpoint_where_its_caller_asks_for_that(
    excluded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[TrainState] = []
    monkeypatch.setattr(behind_engine, "layout_of_engine", lambda _: None)
    monkeypatch.setattr(behind_engine, "save_checkpoint", lambda _engine, _paths, state, *_: saved.append(state))
    engine = put_behind(Engine(stage=2, num_groups=1, universal=False))
    engine.save_checkpoint(tmp_path, save_latest=False, exclude_frozen_parameters=excluded)
    assert [(each.step, each.without_frozen) for each in saved] == [(7, excluded)]
