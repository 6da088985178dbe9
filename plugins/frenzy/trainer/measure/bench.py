"""What this machine measures on: its GPU, found without starting CUDA in the process the ranks are forked from."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from frenzy.core.values.errors import PermanentError, Reason, ReasonCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """The GPUs torch sees. memory_bytes: of one; driver: its release, where NVML tells.

    compute_capability: ``"9.0"``.
    """

    name: str
    num_gpus: int
    memory_bytes: int
    driver: str | None
    compute_capability: str | None = None


def card_facts() -> CardFacts:
    """The machine's GPUs, asked in a child. Raises PermanentError when torch sees none."""
    from frenzy.trainer.launch.child import call_in_child

    with tempfile.TemporaryDirectory(prefix="frenzy-card-") as folder:
        found = call_in_child(_ask_torch, Path(folder) / "card.pickle", log_file=Path(folder) / "card.log")
    if isinstance(found, CardFacts):
        return found
    raise PermanentError(
        Reason(
            code=ReasonCode.NOT_ENOUGH_GPUS,
            detail="torch sees no CUDA GPU on this machine.",
            remedy="Measure on virtual GPUs: --device virtual.",
        )
    )


def _ask_torch() -> CardFacts | None:
    import torch

    if not torch.cuda.is_available():
        return None
    card = torch.cuda.get_device_properties(0)
    return CardFacts(
        name=str(card.name),
        num_gpus=torch.cuda.device_count(),
        memory_bytes=int(card.total_memory),
        driver=_driver_version(),
        compute_capability=f"{card.major}.{card.minor}",
    )


def _driver_version() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # a missing driver library shows itself in many ways, and the release is only noted
        return None
    return version.decode() if isinstance(version, bytes) else str(version)
