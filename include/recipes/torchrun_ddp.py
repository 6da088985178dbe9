"""A byte-level language model by plain torch DDP.

Runs as it is under torchrun, and as a job of Frenzy (include/jobs/scripts/torchrun-ddp.yaml):

    torchrun --nproc-per-node 2 include/recipes/torchrun_ddp.py
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import frenzy_agent

DATA = Path(__file__).parents[1] / "data/tinyshakespeare.txt"
WIDTH = 64


class ByteModel(nn.Module):
    """Two layers of causal attention over bytes."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(length, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layers(self.tokens(tokens) + self.places(places), mask=mask, is_causal=True))


def setting(name: str, otherwise: str) -> str:
    """What the plan says, or what holds outside Frenzy."""
    return os.environ.get(f"FRENZY_{name}") or otherwise


def batch_of(text: torch.Tensor, step: int, size: int, length: int) -> torch.Tensor:
    """The whole batch of ``step``: the same for every number of ranks."""
    draw = torch.Generator().manual_seed(1616 + step)
    starts = torch.randint(len(text) - length - 1, (size,), generator=draw)
    return torch.stack([text[start : start + length + 1] for start in starts])


def main() -> None:
    on_card = setting("DEVICE", "cuda" if torch.cuda.is_available() else "cpu") == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_card else torch.device("cpu")
    distributed.init_process_group("nccl" if on_card else "gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    length, steps = int(setting("SEQUENCE_LENGTH", "64")), int(setting("MAX_STEPS", "20"))
    micro, accumulation = int(setting("MICRO_BATCH_SIZE", "8")), int(setting("ACCUMULATION_STEPS", "1"))
    every, folder = int(setting("CHECKPOINT_EVERY_STEPS", "10")), Path(setting("CHECKPOINT_DIR", "build/torchrun-ddp"))
    text = torch.frombuffer(bytearray(Path(setting("DATA_PATH", str(DATA))).read_bytes()), dtype=torch.uint8).long()

    torch.manual_seed(int(setting("SEED", "0")))
    model = ByteModel(length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(setting("LEARNING_RATE", "1e-3")))
    first = 0
    resume_from = frenzy_agent.resume_from()
    if resume_from:
        state = torch.load(resume_from, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    parallel = DistributedDataParallel(model, device_ids=[device.index] if on_card else None)

    for step in range(first + 1, steps + 1):
        rows = batch_of(text, step, micro * accumulation * world, length).to(device).chunk(world)[rank]
        loss = 0.0
        for number, part in enumerate(rows.split(micro), start=1):
            with nullcontext() if number == accumulation else parallel.no_sync():
                logits = parallel(part[:, :-1])
                share = nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / accumulation
                share.backward()
            loss += float(share.detach())
        optimizer.step()
        optimizer.zero_grad()
        frenzy_agent.step(step, loss=loss, total_steps=steps, tokens=micro * accumulation * length)
        stops = frenzy_agent.should_stop()
        if stops or step % every == 0 or step == steps:
            save(folder / f"step-{step}.pt", model, optimizer, step)
        if stops:
            break
    if rank == 0 and step == steps and frenzy_agent.is_active():
        target = Path(os.environ["FRENZY_MODEL_DIR"])
        target.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), target / "model.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Rank 0 writes, whole or not at all; all wait for it."""
    if distributed.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside)
        beside.replace(path)
        frenzy_agent.checkpointed(path, step)
    distributed.barrier()


if __name__ == "__main__":
    main()
