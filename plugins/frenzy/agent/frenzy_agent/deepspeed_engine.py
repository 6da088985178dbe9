"""A DeepSpeed engine that reports: its steps as they are taken, its checkpoints as they are whole."""

from __future__ import annotations

import functools
from typing import Any

from frenzy_agent.channel import Channel


def attached(engine: Any, channel: Channel) -> Any:
    """``engine``, of which ``step`` and ``save_checkpoint`` tell ``channel`` what was done.

    Where Frenzy started it, its checkpoints are Frenzy's own, which any number of ranks can read.
    """
    if channel.is_active:
        _put_behind(engine)
    take_step, go_back, save = engine.step, engine.backward, engine.save_checkpoint
    losses: list[Any] = []

    @functools.wraps(go_back)
    def backward(loss: Any, *given: Any, **named: Any) -> Any:
        losses.append(loss.detach())
        return go_back(loss, *given, **named)

    @functools.wraps(take_step)
    def step(*given: Any, **named: Any) -> Any:
        before = engine.global_steps
        result = take_step(*given, **named)
        if engine.global_steps > before:
            channel.step(engine.global_steps, loss=sum(losses) / len(losses) if losses else None)
            losses.clear()
        return result

    @functools.wraps(save)
    def save_checkpoint(save_dir: Any, *given: Any, **named: Any) -> Any:
        result = save(save_dir, *given, **named)
        channel.checkpointed(str(save_dir), engine.global_steps)
        return result

    engine.backward, engine.step, engine.save_checkpoint = backward, step, save_checkpoint
    return engine


def put_behind_all(channel: Channel) -> None:
    """Put Frenzy's checkpoints behind every engine that ``deepspeed.initialize`` makes from now on."""
    import deepspeed

    channel.spare_compiler()
    make = deepspeed.initialize
    if getattr(make, "_is_frenzys", False):
        return

    @functools.wraps(make)
    def initialize(*given: Any, **named: Any) -> Any:
        made = make(*given, **named)
        _put_behind(made[0])
        return made

    initialize._is_frenzys = True  # type: ignore[attr-defined]
    deepspeed.initialize = initialize


def _put_behind(engine: Any) -> None:
    """Frenzy's files in the place of DeepSpeed's, if its package is there as well."""
    try:
        from frenzy.trainer.checkpoint.behind_engine import put_behind
    except ModuleNotFoundError:
        return
    put_behind(engine)
