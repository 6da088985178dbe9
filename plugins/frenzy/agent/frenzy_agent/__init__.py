"""What a training script tells Frenzy, and what Frenzy asks of it. Import it after torch.

Three calls for any loop, in every rank: ``step``, ``should_stop``, ``checkpointed``. ``FrenzyCallback`` for a
``transformers.Trainer`` and ``attach`` for a DeepSpeed engine make them for you. Outside Frenzy they do nothing.
``refuse`` ends a run that cannot be.
Needs the standard library only; torch is used where the script has imported it.
"""

from __future__ import annotations

from typing import Any, NoReturn

from frenzy_agent.channel import CHANNEL

__all__ = ["attach", "checkpointed", "is_active", "refuse", "resume_from", "resume_step", "should_stop", "step"]


def is_active() -> bool:
    """Whether Frenzy started this process."""
    return CHANNEL.is_active


def resume_from() -> str | None:
    """The checkpoint to go on from, as ``checkpointed`` was told its path; None at the first start."""
    return CHANNEL.resume_from


def resume_step() -> int:
    """The step of ``resume_from``; 0 at the first start."""
    return CHANNEL.resume_step


def step(
    number: int,
    loss: float | None = None,
    *,
    total_steps: int | None = None,
    tokens: int | None = None,
    learning_rate: float | None = None,
    grad_norm: float | None = None,
) -> None:
    """Optimizer step ``number`` (from 1, over the whole run) is done.

    tokens: of this rank in this step. loss: a number, or a tensor of one element.
    """
    CHANNEL.step(
        int(number),
        loss=loss,
        total_steps=total_steps,
        tokens=tokens,
        learning_rate=learning_rate,
        grad_norm=grad_norm,
    )


def should_stop() -> bool:
    """Whether to save a checkpoint now, report it, and end with exit code 0.

    Where torch.distributed is initialised the ranks agree on it, so every rank must ask equally often; once it is
    True it stays so.
    """
    return CHANNEL.should_stop()


def checkpointed(path: Any, number: int | None = None) -> None:
    """A checkpoint of step ``number`` (default: the last reported) is whole at ``path``. Rank 0's word counts."""
    CHANNEL.checkpointed(str(path), number)


def refuse(why: str) -> NoReturn:
    """End this rank because its data or settings are wrong, so that no other try can help."""
    CHANNEL.refuse(str(why))


def attach(engine: Any) -> Any:
    """Let a DeepSpeed ``engine`` report its steps and its checkpoints; the engine."""
    from frenzy_agent.deepspeed_engine import attached

    return attached(engine, CHANNEL)


def __getattr__(name: str) -> Any:
    if name == "FrenzyCallback":
        from frenzy_agent.trainer_callback import FrenzyCallback

        return FrenzyCallback
    raise AttributeError(f"module 'frenzy_agent' has no attribute {name!r}")
