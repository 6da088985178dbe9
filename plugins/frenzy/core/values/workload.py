"""A training script of the user's own, in the place of the built-in trainer."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Literal

from annotated_types import Ge, Le, Len

from frenzy.core.values.errors import Violation
from frenzy.core.values.job_fields import Closed, Doc
from frenzy.core.values.units import counted, parse_bytes

_TEXT: Final = 4096
TRANSFORMERS_LIBRARY: Final = "transformers"
# Whose releases an agent reports.
_LIBRARIES: Final = (TRANSFORMERS_LIBRARY, "deepspeed", "torch")
_RELEASE: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}[0-9a-z.+]{0,20}")
# They start ranks themselves, and their exit code is always 1: the launcher does both.
_LAUNCHERS: Final = frozenset({"torchrun", "deepspeed", "accelerate", "mpirun", "srun"})
_LAUNCHER_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


class Honour(StrEnum):
    """What a script takes from its plan."""

    MICRO_BATCH = "micro_batch"
    ZERO = "zero"
    CHECKPOINTING = "checkpointing"
    OFFLOAD = "offload"
    WORLD_SIZE = "world_size"


class Task(StrEnum):
    """What a script trains its model for, as far as memory and time go. Trainers are those of TRL and transformers.

    language-model: the next token, with the model's own loss. sft: the same by SFTTrainer, whose loss never holds all
    logits. dpo: DPOTrainer's preferences, with a reference. reward: RewardTrainer's. classification: a class for each
    text.
    """

    LANGUAGE_MODEL = "language-model"
    SFT = "sft"
    DPO = "dpo"
    REWARD = "reward"
    CLASSIFICATION = "classification"

    @property
    def has_tiles(self) -> bool:
        """Whether the loss is computed tile by tile, by TRL's function."""
        return self in (Task.SFT, Task.DPO)

    @property
    def has_classes(self) -> bool:
        """Whether a small head stands in the place of the output matrix."""
        return self in (Task.REWARD, Task.CLASSIFICATION)

    @property
    def has_reference(self) -> bool:
        """Whether a frozen model is asked beside the trained one; with adapters it is the same without them."""
        return self is Task.DPO

    @property
    def num_sequences(self) -> int:
        """Of one sample: what was chosen and what was rejected go through the model together."""
        return 2 if self in (Task.DPO, Task.REWARD) else 1

    @property
    def relative_work(self) -> float:
        """In units of the work of one sequence: a reference adds a pass forward, a third of what training takes."""
        return self.num_sequences * (4 / 3 if self.has_reference else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec(Closed):
    """A script of yours that trains, in the place of the built-in trainer."""

    command: Annotated[
        tuple[str, ...],
        Len(1, 256),
        Doc(
            "The words that start one rank; no shell reads them. Frenzy starts one for each GPU.", ("python train.py",)
        ),
    ]
    framework: Annotated[Literal["torchrun", "deepspeed", "hf-trainer"], Doc("What the script is written for.")] = (
        "torchrun"
    )
    task: Annotated[
        Task,
        Doc(
            "What its model is trained for: its predicted memory depends on it. sft, dpo and reward are TRL's trainers."
        ),
    ] = Task.LANGUAGE_MODEL
    image: Annotated[
        str | None, Len(1, 512), Doc("On Kubernetes, an image that the pod rules allow; nothing: their own.")
    ] = None
    folder: Annotated[
        str | None, Len(1, _TEXT), Doc("Where the command starts, the script's folder as a rule; nothing: a new one.")
    ] = None
    resumable: Annotated[
        Literal[True, False, "same-world"],
        Doc("Whether the script goes on from its checkpoint: on any plan, on none, or on plans of the same shape."),
    ] = False
    min_gpus: Annotated[int, Ge(1), Le(1_000_000), Doc("Never fewer GPUs than this.")] = 1
    max_gpus: Annotated[int | None, Ge(1), Le(1_000_000), Doc("Never more GPUs than this.")] = None
    honours: Annotated[
        tuple[str, ...],
        Len(0, len(Honour)),
        Doc(f"What the script takes from its plan: {', '.join(Honour)}. Plans vary in nothing else."),
    ] = ()

    packages: Annotated[
        Mapping[str, str],
        Len(0, 1),
        Doc("The script's own release of transformers, where it is not the trainer's: its model is predicted for it."),
    ] = field(default_factory=dict)

    @property
    def transformers_release(self) -> str | None:
        """The release that the script runs; None where it is the trainer's."""
        return self.packages.get(TRANSFORMERS_LIBRARY)

    def takes(self, what: Honour) -> bool:
        """Whether plans may vary in it."""
        return what in self.honours

    @property
    def divides_states(self) -> bool:
        """Whether ZeRO is what trains; else each rank holds all states, of torch's own optimizer."""
        return self.framework == "deepspeed" or self.takes(Honour.ZERO)

    @property
    def most_gpus(self) -> int | None:
        """No plan has more; None where the cluster alone limits them."""
        return self.max_gpus if self.takes(Honour.WORLD_SIZE) else self.min_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMemory(Closed):
    """What a job needs, where the specification names no model."""

    per_gpu: Annotated[str, Len(1, 64), Doc("What one GPU must have for it.", ("20 GiB",))]

    @property
    def per_gpu_bytes(self) -> int:
        return parse_bytes(self.per_gpu)


def believed_releases(reported: object) -> dict[str, str]:
    """What of an agent's ``reported`` releases is one: of the libraries that matter, in the form of a release."""
    if not isinstance(reported, Mapping):
        return {}
    found = ((name, reported.get(name)) for name in _LIBRARIES)
    return {name: each for name, each in found if isinstance(each, str) and _RELEASE.fullmatch(each)}


def workload_violations(workload: WorkloadSpec) -> Iterator[Violation]:
    """What of ``workload`` is wrong by itself."""
    yield from _command_violations(workload.command)
    for index, name in enumerate(workload.honours):
        if name not in tuple(Honour):
            near = difflib.get_close_matches(name.lower().replace("-", "_"), tuple(Honour), n=1)
            allowed = f"did you mean {near[0]}?" if near else f"one of {', '.join(Honour)}"
            yield Violation(path=f"workload.honours[{index}]", value=repr(name), allowed=allowed)
    yield from _package_violations(workload.packages)
    most = workload.max_gpus
    if most is not None and most < workload.min_gpus:
        yield Violation(path="workload.max_gpus", value=str(most), allowed=f"at least min_gpus = {workload.min_gpus}")
    elif most is not None and most != workload.min_gpus and not workload.takes(Honour.WORLD_SIZE):
        allowed = (
            f"a script that does not honour world_size runs on {counted(workload.min_gpus, 'GPU')}; "
            "add world_size to workload.honours, or leave max_gpus out"
        )
        yield Violation(path="workload.max_gpus", value=str(most), allowed=allowed)


def _package_violations(packages: Mapping[str, str]) -> Iterator[Violation]:
    """What no coefficients can be kept for, and what is no release."""
    for name, release in packages.items():
        if name != TRANSFORMERS_LIBRARY:
            yield Violation(path=f"workload.packages.{name}", value=repr(release), allowed="only transformers is known")
        elif not _RELEASE.fullmatch(release):
            allowed = "a release such as '4.48.1'"
            yield Violation(path=f"workload.packages.{name}", value=repr(release), allowed=allowed)


def memory_violations(memory: DeclaredMemory) -> Iterator[Violation]:
    """A size that is none."""
    try:
        size = memory.per_gpu_bytes
    except ValueError as error:
        yield Violation(path="memory.per_gpu", value=repr(memory.per_gpu), allowed=str(error))
        return
    if size <= 0:
        yield Violation(path="memory.per_gpu", value=repr(memory.per_gpu), allowed="a size above 0, such as '20 GiB'")


def _command_violations(command: tuple[str, ...]) -> Iterator[Violation]:
    for index, word in enumerate(command):
        if not word or "\0" in word or len(word) > _TEXT:
            yield Violation(
                path=f"workload.command[{index}]", value=repr(word[:80]), allowed=f"a word of 1 to {_TEXT} characters"
            )
    starter = posixpath.basename(command[0])
    module = command[2] if command[1:2] == ("-m",) else ""
    if starter in _LAUNCHERS or module.startswith(_LAUNCHER_MODULES):
        allowed = "the command of one rank, such as [python, train.py]: Frenzy starts one for each GPU of the plan"
        yield Violation(path="workload.command", value=repr(" ".join(command)[:200]), allowed=allowed)
    elif len(command) == 1 and " " in command[0]:
        words = ", ".join(command[0].split())
        yield Violation(path="workload.command", value=repr(command[0][:200]), allowed=f"did you mean [{words}]?")
