"""A callback for ``transformers.Trainer``: steps and checkpoints are reported, a request to stop is obeyed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from frenzy_agent.channel import CHANNEL, Channel
from frenzy_agent.deepspeed_engine import put_behind_all


class FrenzyCallback(TrainerCallback):
    """For ``Trainer(callbacks=[FrenzyCallback()])``; ``train(resume_from_checkpoint=frenzy_agent.resume_from())``."""

    def __init__(self, channel: Channel = CHANNEL) -> None:
        self._channel = channel
        self._loss: float | None = None
        self._learning_rate: float | None = None
        self._told = 0
        if channel.is_active and "deepspeed" in sys.modules:
            put_behind_all(channel)

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A Trainer over DeepSpeed makes its engine, and has it load a checkpoint, before it calls any other event."""
        if self._channel.is_active and getattr(args, "hf_deepspeed_config", None) is not None:
            put_behind_all(self._channel)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """When asked to stop, save at the end of this step; its loss is made known only afterwards."""
        if state.global_step < state.max_steps and self._channel.should_stop():
            control.should_save = True
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The newest loss that the Trainer made known."""
        logs = logs or {}
        self._loss = logs.get("loss", self._loss)
        self._learning_rate = logs.get("learning_rate", self._learning_rate)
        self._tell(state)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer has written its folder."""
        self._tell(state)
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._channel.checkpointed(str(folder), state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step before, if nothing was logged after it."""
        self._tell(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The last step, if nothing was logged after it."""
        self._tell(state)

    def _tell(self, state: Any) -> None:
        if state.global_step > self._told:
            self._told = state.global_step
            self._channel.step(
                state.global_step, loss=self._loss, total_steps=state.max_steps, learning_rate=self._learning_rate
            )
