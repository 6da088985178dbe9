"""Frenzy's checkpoints behind an engine: the calls are DeepSpeed's, with what fragments cannot do refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deepspeed.runtime.engine import DeepSpeedEngine

from frenzy.core.values.errors import ContractError
from frenzy.trainer.checkpoint.behind_engine import put_behind


class Engine:
    """An engine whose own calls take what DeepSpeed's take, and which tells how it was asked."""

    def zero_optimization_stage(self) -> int:
        return 2

    save_checkpoint = DeepSpeedEngine.save_checkpoint

    def load_checkpoint(  # noqa: PLR0913
        self,
        load_dir: str,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str, Any]:
        return load_dir, (tag, load_module_strict, load_optimizer_states, load_module_only)


def test_checkpoints_of_deepspeeds_own_are_loaded_as_they_are_asked_for(tmp_path: Path) -> None:
    engine = put_behind(Engine())
    found = engine.load_checkpoint(str(tmp_path), "one", False, False, load_module_only=True)
    assert found == (str(tmp_path), ("one", False, False, True))


@pytest.mark.parametrize(
    ("positional", "named"),
    [((), {"load_module_only": True}), ((), {"load_optimizer_states": False}), ((True, False), {})],
)
def test_half_of_a_checkpoint_of_fragments_is_refused(
    tmp_path: Path, positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    (tmp_path / "one/checkpoints").mkdir(parents=True)
    engine = put_behind(Engine())
    with pytest.raises(ContractError, match=r"loaded whole.*call load_checkpoint without"):
        engine.load_checkpoint(str(tmp_path), "one", *positional, **named)


def test_calls_that_deepspeed_does_not_know_are_refused(tmp_path: Path) -> None:
    engine = put_behind(Engine())
    with pytest.raises(TypeError, match="load_everything"):
        engine.load_checkpoint(str(tmp_path), load_everything=True)
    with pytest.raises(TypeError, match="keep_all"):
        engine.save_checkpoint(str(tmp_path), None, {}, True, False, keep_all=True)
