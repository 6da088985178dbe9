"""The project's checkpoints behind a DeepSpeed engine of the user's: the same calls, other files.

``engine.save_checkpoint(folder)`` writes fragments labelled by parameter and position, so that
``engine.load_checkpoint(folder)`` fills an engine of another number of ranks, or of another ZeRO stage. Nothing is
converted. Folders are laid out as DeepSpeed's are: ``latest`` names the tag, ``<tag>/`` holds the files.
"""

from __future__ import annotations

import functools
import inspect
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import distributed

from frenzy.core.lifecycle.resume import RESUMABLE_STAGES
from frenzy.core.values.errors import ContractError
from frenzy.core.values.run_files import RunPaths
from frenzy.trainer.checkpoint.load import layout_of_engine, load_checkpoint
from frenzy.trainer.checkpoint.save import save_checkpoint
from frenzy.trainer.checkpoint.saved_state import TrainState
from frenzy.trainer.checkpoint.store import prepare_resume
from frenzy.trainer.collective import from_rank0

_STAGE_3: Final = 3
_LATEST: Final = "latest"
_GROUPS, _SCHEDULE, _CLIENT = "param_groups", "lr_scheduler", "client_state"


def put_behind(engine: Any) -> Any:
    """``engine``, whose ``save_checkpoint`` and ``load_checkpoint`` use fragments; unchanged without ZeRO."""
    if engine.zero_optimization_stage() not in RESUMABLE_STAGES:
        return engine
    own_save, own_load = engine.save_checkpoint, engine.load_checkpoint
    save_call, load_call = inspect.signature(own_save), inspect.signature(own_load)

    @functools.wraps(own_save)
    def save(*positional: Any, **named: Any) -> bool:
        given = _arguments(save_call, positional, named)
        step, kept = int(engine.global_steps), _kept(engine, given["client_state"] or {})
        # As a Trainer asks for beside adapters: the base model is where the script has it from.
        without_frozen = bool(given.get("exclude_frozen_parameters", False))
        state = TrainState(step=step, callback_states=kept, without_frozen=without_frozen)
        return _save(engine, Path(given["save_dir"]), given["tag"], state, latest=bool(given["save_latest"]))

    @functools.wraps(own_load)
    def load(*positional: Any, **named: Any) -> tuple[str | None, Any]:
        given = _arguments(load_call, positional, named)
        found = _tagged(Path(given["load_dir"]), given["tag"])
        if found is None or not (found / "checkpoints").is_dir():  # of DeepSpeed's own
            _check_import(engine)
            result: tuple[str | None, Any] = own_load(*positional, **named)
            return result
        if given["load_module_only"] or not given["load_optimizer_states"]:
            raise ContractError(
                f"{found} is loaded whole, weights and optimizer states: call load_checkpoint without load_module_only "
                "and load_optimizer_states, or load the weights of a finished model before deepspeed.initialize"
            )
        return _load(engine, found, schedule=bool(given["load_lr_scheduler_states"]))

    engine.save_checkpoint, engine.load_checkpoint = save, load
    return engine


def _check_import(engine: Any) -> None:
    """Raises ContractError for a universal checkpoint that DeepSpeed would load otherwise than it was saved."""
    if not engine.load_universal_checkpoint() or engine.zero_optimization_stage() != _STAGE_3:
        return
    groups = engine.optimizer.param_groups
    if len(groups) > 1:
        raise ContractError(
            f"a universal checkpoint with {len(groups)} parameter groups cannot be loaded at stage 3: DeepSpeed gives "
            "all of them the settings of the first; load it at stage 1 or 2, and save it from there"
        )


def _arguments(call: inspect.Signature, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """What is given to ``call``, by name, with its defaults. Raises TypeError as the call would."""
    bound = call.bind(*positional, **named)
    bound.apply_defaults()
    return bound.arguments


def _kept(engine: Any, client_state: Mapping[str, Any]) -> dict[str, Any]:
    """What is saved beside tensors and counters. Raises ContractError."""
    return _as_json(
        {
            _GROUPS: [_plain(group) for group in engine.optimizer.param_groups],
            _SCHEDULE: _state_of(engine.lr_scheduler),
            _CLIENT: dict(client_state),
        }
    )


def _save(engine: Any, folder: Path, tag: Any, state: TrainState, *, latest: bool) -> bool:
    name = f"global_step{engine.global_steps}" if tag is None else str(tag)
    save_checkpoint(engine, RunPaths(str(folder / name)), state, layout_of_engine(engine), 1)
    if latest:
        from_rank0(lambda: _point(folder, name))
    return True


def _load(engine: Any, folder: Path, *, schedule: bool) -> tuple[str, Any]:
    layout = layout_of_engine(engine)
    with tempfile.TemporaryDirectory(prefix="frenzy-checkpoint-") as scratch:
        prepared = prepare_resume(RunPaths(str(folder)), Path(scratch), layout)
        if prepared is None:
            raise ContractError(f"{folder} holds no checkpoint that is whole")
        kept = load_checkpoint(engine, prepared, layout).callback_states
    groups = engine.optimizer.param_groups
    if len(groups) != len(kept[_GROUPS]):
        raise ContractError(f"the checkpoint has {len(kept[_GROUPS])} parameter groups, the engine has {len(groups)}")
    for group, values in zip(groups, kept[_GROUPS], strict=True):
        group.update({name: tuple(each) if isinstance(each, list) else each for name, each in values.items()})
    if schedule and engine.lr_scheduler is not None and kept[_SCHEDULE] is not None:
        engine.lr_scheduler.load_state_dict(kept[_SCHEDULE])
    distributed.barrier()
    return str(folder), kept[_CLIENT]


def _tagged(folder: Path, tag: Any) -> Path | None:
    """The folder of ``tag``, or of the newest one; None where nothing says which that is."""
    if tag is not None:
        return folder / str(tag)
    try:
        return folder / (folder / _LATEST).read_text().strip()
    except FileNotFoundError:
        return None


def _point(folder: Path, name: str) -> None:
    beside = folder / f".{_LATEST}.part"
    beside.write_text(name)
    beside.replace(folder / _LATEST)


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group: rates, decays, whatever is a number or some.

    Never its parameters, of which stage 3 leaves an empty list between steps.
    """
    return {name: value for name, value in group.items() if name != "params" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, int | float) for each in value)
    return isinstance(value, bool | int | float | str)


def _state_of(scheduler: Any) -> Any:
    return None if scheduler is None else scheduler.state_dict()


def _as_json(kept: Mapping[str, Any]) -> dict[str, Any]:
    """``kept`` as it is read back. Raises ContractError for what JSON cannot hold."""
    try:
        document: dict[str, Any] = json.loads(json.dumps(kept))
    except (TypeError, ValueError) as error:
        raise ContractError(f"the scheduler's state and client_state must be plain values: {error}") from error
    return document
