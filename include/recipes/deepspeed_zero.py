"""A byte-level language model by plain DeepSpeed; the plan's ZeRO stage and micro-batch come with its config.

Runs as a job of Frenzy (include/jobs/scripts/deepspeed-zero.yaml), which writes the config that it reads.
"""

from __future__ import annotations

import os
from pathlib import Path

import deepspeed
import torch
from torch import distributed, nn
from torchrun_ddp import DATA, ByteModel, batch_of, setting

import frenzy_agent


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo" if setting("DEVICE", "cuda") == "cpu" else "nccl")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    length, steps = int(setting("SEQUENCE_LENGTH", "64")), int(setting("MAX_STEPS", "20"))
    every = int(setting("CHECKPOINT_EVERY_STEPS", "10"))
    micro, accumulation = int(setting("MICRO_BATCH_SIZE", "8")), int(setting("ACCUMULATION_STEPS", "1"))
    folder = setting("CHECKPOINT_DIR", "build/deepspeed-zero")
    text = torch.frombuffer(bytearray(Path(setting("DATA_PATH", str(DATA))).read_bytes()), dtype=torch.uint8).long()

    torch.manual_seed(int(setting("SEED", "0")))
    model = ByteModel(length)
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=os.environ["FRENZY_DEEPSPEED_CONFIG"]
    )
    frenzy_agent.attach(engine)
    if frenzy_agent.resume_from():
        # not the folder's ``latest``: the step that Frenzy knows of, which its pages and limits count from
        engine.load_checkpoint(frenzy_agent.resume_from(), tag=f"global_step{frenzy_agent.resume_step()}")

    for step in range(engine.global_steps + 1, steps + 1):
        # any number of ranks cuts the batch in the same micro-batches
        parts = batch_of(text, step, micro * accumulation * world, length).split(micro)
        for turn in range(accumulation):
            part = parts[turn * world + rank].to(engine.device)
            logits = engine(part[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
        stops = frenzy_agent.should_stop()
        if stops or step % every == 0 or step == steps:
            engine.save_checkpoint(folder)
        if stops:
            break
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
