"""A ``Trainer`` over DeepSpeed as users write it; Frenzy's are the callback, the resume, and what the plan says."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import frenzy_agent


class Bytes(torch.utils.data.Dataset):
    """A file as rows of bytes."""

    def __init__(self, path: Path, length: int) -> None:
        text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self._rows = text[: len(text) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def main() -> None:
    said, asked = os.environ, argparse.ArgumentParser()
    asked.add_argument("--adapters", action="store_true")
    options = asked.parse_args()
    job = json.loads(Path(said["FRENZY_JOB_FILE"]).read_text())["training"]
    arguments = TrainingArguments(
        output_dir=said["FRENZY_CHECKPOINT_DIR"],
        per_device_train_batch_size=int(said["FRENZY_MICRO_BATCH_SIZE"]),
        gradient_accumulation_steps=int(said["FRENZY_ACCUMULATION_STEPS"]),
        max_steps=int(said["FRENZY_MAX_STEPS"]),
        lr_scheduler_type="cosine",
        learning_rate=float(said["FRENZY_LEARNING_RATE"]),
        weight_decay=job["weight_decay"],
        max_grad_norm=job["gradient_clipping"],
        save_steps=int(said["FRENZY_CHECKPOINT_EVERY_STEPS"]),
        logging_steps=1,
        seed=0,
        bf16=said["FRENZY_PRECISION"] == "bf16",
        use_cpu=True,
        deepspeed=said["FRENZY_DEEPSPEED_CONFIG"],
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = GPT2LMHeadModel(shape)
    if options.adapters:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Bytes(Path(said["FRENZY_DATA_PATH"]), 64),
        callbacks=[frenzy_agent.FrenzyCallback()],
    )
    trainer.train(resume_from_checkpoint=frenzy_agent.resume_from())
    trainer.save_model(said["FRENZY_MODEL_DIR"])


if __name__ == "__main__":
    main()
