"""Users' code inside the training loop, and one callback that ships with the trainer."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frenzy.core.values.job import CallbackSpec
from frenzy.trainer.outcome import BadInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Where the training stands. step counts from 1 over the whole run; 0 before the first."""

    step: int
    total_steps: int
    loss: float | None
    learning_rate: float
    rank: int
    world_size: int
    zero_stage: int


class Callback:
    """Base of users' callbacks: every hook does nothing. All ranks call every hook.

    ``model`` is the wrapped module; under ZeRO-3 each rank holds only its part of each parameter.
    ``state_dict`` must be small and plain JSON; it is kept with every checkpoint and handed to
    ``load_state_dict`` on resume, before ``on_train_begin``.
    """

    def on_train_begin(self, context: StepContext, model: torch.nn.Module) -> None: ...

    def on_step_end(self, context: StepContext, model: torch.nn.Module) -> None: ...

    def on_checkpoint(self, context: StepContext, model: torch.nn.Module) -> None: ...

    def on_train_end(self, context: StepContext, model: torch.nn.Module) -> None: ...

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class SnapshotAverage(Callback):
    """Averages the last ``keep_last`` weight snapshots, taken every ``every_steps`` steps.

    Izmailov et al. 2018 (stochastic weight averaging). From step ``start_step`` on, every
    ``every_steps``-th step of the attempt adds a snapshot: a full copy of this device's weights in
    this device's memory, up to ``keep_last`` of them;
    under ZeRO-3 a copy is this rank's share. At the end of the run the weights become the mean of
    the snapshots. Snapshots are not kept with checkpoints (they would multiply their size): after
    a resume collecting starts anew.
    """

    def __init__(self, keep_last: int = 8, every_steps: int = 1, start_step: int = 1) -> None:
        for name, value in (("keep_last", keep_last), ("every_steps", every_steps), ("start_step", start_step)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        self._every_steps, self._start_step, self._num_seen = every_steps, start_step, 0
        self._snapshots: deque[list[torch.Tensor]] = deque(maxlen=keep_last)

    def on_step_end(self, context: StepContext, model: torch.nn.Module) -> None:
        if context.step < self._start_step:
            return
        self._num_seen += 1
        if self._num_seen % self._every_steps == 0:
            if len(self._snapshots) == self._snapshots.maxlen:
                self._snapshots.popleft()
            self._snapshots.append([each.detach().clone() for each in held_weights(model)])

    def on_train_end(self, context: StepContext, model: torch.nn.Module) -> None:
        if not self._snapshots:
            return
        with torch.no_grad():
            for position, weight in enumerate(held_weights(model)):
                mean = torch.zeros_like(weight, dtype=torch.float32)
                for snapshot in self._snapshots:
                    mean += snapshot[position].float() / len(self._snapshots)
                weight.copy_(mean)
        self._snapshots.clear()


def held_weights(model: torch.nn.Module) -> Sequence[torch.Tensor]:
    """The trainable weights this device holds: whole parameters, or its shares under ZeRO-3."""
    return [
        parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter.data
        for parameter in model.parameters()
        if parameter.requires_grad
    ]


def load_callbacks(specs: Iterable[CallbackSpec]) -> tuple[Callback, ...]:
    """The callbacks of ``specs``, made. Raises BadInputError naming the one that cannot be."""
    return tuple(_load(position, spec) for position, spec in enumerate(specs))


def callback_states(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """What the callbacks want kept, by position and class."""
    return {_key(position, each): dict(each.state_dict()) for position, each in enumerate(callbacks)}


def restore_callbacks(callbacks: Sequence[Callback], states: Mapping[str, Any]) -> None:
    """Hand each callback what it kept, if it is still at its place."""
    for position, each in enumerate(callbacks):
        if _key(position, each) in states:
            each.load_state_dict(states[_key(position, each)])


def _key(position: int, callback: Callback) -> str:
    return f"{position}:{type(callback).__module__}:{type(callback).__qualname__}"


def _load(position: int, spec: CallbackSpec) -> Callback:
    path = f"training.callbacks[{position}]"
    module_name, _, class_name = spec.path.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        allowed = f"write package.module:Class of something importable through PYTHONPATH ({error})"
        raise BadInputError(f"{path}.path", spec.path, allowed) from error
    missing = [name for name in vars(Callback) if not name.startswith("_") and not hasattr(kind, name)]
    if missing:
        allowed = f"it lacks {', '.join(missing)}; derive it from frenzy.trainer.callbacks:Callback"
        raise BadInputError(f"{path}.path", spec.path, allowed)
    try:
        made: Callback = kind(**spec.args)
    except (TypeError, ValueError) as error:
        raise BadInputError(f"{path}.args", dict(spec.args), str(error)) from error
    return made
